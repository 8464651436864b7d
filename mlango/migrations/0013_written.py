from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mlango", "0012_leases")]

    operations = [
        migrations.AddField(
            model_name="durablerun",
            name="written",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
