import os
import time

from django.db import migrations, models

from leasehold import AcquireTimeout


def slow(apps, schema_editor):
    if os.environ.get("DJ_FIRST_FAILS"):
        raise AcquireTimeout("of a migration")
    time.sleep(float(os.environ.get("DJ_FIRST_TAKES", "0")))
    while "DJ_FIRST_UNTIL" in os.environ and not os.path.exists(os.environ["DJ_FIRST_UNTIL"]):
        time.sleep(0.01)


ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel("Shelf", [("id", ID.clone()), ("label", models.TextField())]),
        migrations.CreateModel("Run", [("id", ID.clone()), ("by", models.TextField())]),
        migrations.RunPython(slow, migrations.RunPython.noop),
    ]
