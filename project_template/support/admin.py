"""The support desk in the admin."""

from django.contrib import admin

from support.models import Article, Order

admin.site.register([Article, Order])
