"""URLs of the project."""

from django.contrib import admin
from django.urls import include, path
from support.agents import Support

urlpatterns = [
    path("admin/", admin.site.urls),
    path("support/", include(Support.urls)),
    path("", include("mlango.urls")),
]
