"""A few articles and orders, so that the agent has something to find."""

import datetime

from django.db import migrations


def add(apps, schema_editor):
    """Write the examples."""
    Article = apps.get_model("support", "Article")
    Order = apps.get_model("support", "Order")
    Article.objects.create(
        title="How to return an item",
        body="You can return any item within 30 days: pack it and print a label on our site.",
    )
    Article.objects.create(
        title="How long delivery takes",
        body="Delivery takes two to four working days.",
    )
    Order.objects.create(number="1001", status="delivered", shipped_on=datetime.date(2026, 11, 2))
    Order.objects.create(
        number="1002", status="on its way", shipped_on=datetime.date(2026, 11, 28)
    )
    Order.objects.create(number="1003", status="being packed")


class Migration(migrations.Migration):
    dependencies = [("support", "0001_initial")]
    operations = [migrations.RunPython(add, migrations.RunPython.noop)]
