import django.db.models.deletion
from django.db import migrations, models

ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.CreateModel(
            "Stock",
            [
                ("id", ID.clone()),
                ("left_over", models.IntegerField(default=10)),
                ("shelf", models.ForeignKey("shop.shelf", null=True, on_delete=django.db.models.deletion.CASCADE)),
                ("fence", models.BigIntegerField(default=0, editable=False)),
            ],
        ),
        migrations.CreateModel(
            "Fresh",
            [
                (
                    "stock_ptr",
                    models.OneToOneField(
                        "shop.stock",
                        parent_link=True,
                        auto_created=True,
                        serialize=False,
                        primary_key=True,
                        on_delete=django.db.models.deletion.CASCADE,
                    ),
                ),
                ("days", models.IntegerField(default=3)),
            ],
            bases=("shop.stock",),
        ),
        migrations.CreateModel("Unfenced", [("id", ID.clone())]),
    ]
