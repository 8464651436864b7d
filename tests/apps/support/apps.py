from django.apps import AppConfig


class SupportConfig(AppConfig):
    name = "tests.apps.support"
    label = "support"
    default_auto_field = "django.db.models.BigAutoField"
