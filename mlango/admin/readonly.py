"""Pages of rows that people read and do not write."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString


class ReadOnlyAdmin(admin.ModelAdmin):
    """Lets those look who have the permission; what a run did cannot be rewritten."""

    show_full_result_count = False  # it would count the whole table

    class Media:
        css = {"all": ["mlango/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def link(self, page: str, text: Any, *args: Any, query: str = "") -> SafeString:
        """Return a link to a page of this site, such as ``mlango_trace_change``."""
        url = reverse(f"admin:{page}", args=args, current_app=self.admin_site.name)
        return format_html('<a href="{}{}">{}</a>', url, query, text)
