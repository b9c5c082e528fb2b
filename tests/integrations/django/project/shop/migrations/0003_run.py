import os

from django.db import migrations


def record(apps, schema_editor):
    apps.get_model("shop", "Run").objects.create(by=str(os.getpid()))


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_stock")]
    operations = [migrations.RunPython(record, migrations.RunPython.noop)]
