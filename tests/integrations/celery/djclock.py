"""A Django project in one file, whose schedule is in its database."""

from __future__ import annotations

import os

import django
from celery import Celery
from django.conf import settings

settings.configure(
    SECRET_KEY="of a test",
    INSTALLED_APPS=["django_celery_beat"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE"]}},
    USE_TZ=True,
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    CELERY_BROKER_URL=os.environ["BROKER_URL"],
    CELERY_BEAT_MAX_LOOP_INTERVAL=0.5,
    CELERY_BEAT_INNER_SCHEDULER="django",
    CELERY_BEAT_LEASEHOLD_URL=os.environ["STORE_URL"],
    CELERY_BEAT_LEASEHOLD_LEASE=float(os.environ["LEASE"]),
)
django.setup()

app = Celery("djclock")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(name="djclock.tick")
def tick(entry: str, sent: float) -> None:
    pass


def prepare() -> None:
    """Make the tables, an entry that runs each second, and one that runs once."""
    from django.core.management import call_command
    from django_celery_beat.models import IntervalSchedule, PeriodicTask

    call_command("migrate", verbosity=0)
    each_second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    for name, one_off in (("often", False), ("once", True)):
        PeriodicTask.objects.create(
            name=name, task="djclock.tick", interval=each_second, args=f'["{name}", 0]', one_off=one_off
        )


if __name__ == "__main__":
    prepare()
