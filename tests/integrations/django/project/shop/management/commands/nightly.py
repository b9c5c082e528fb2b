import time

from django.core.management.base import BaseCommand

from leasehold.integrations.django.commands import RunOnceMixin
from shop.models import Run


class Command(RunOnceMixin, BaseCommand):
    """Records that it ran, and takes a while."""

    def add_arguments(self, parser):
        parser.add_argument("--takes", type=float, default=0.0)

    def handle(self, takes, **options):
        Run.objects.create(by=f"nightly {self.hold and self.hold.token}")
        self.stdout.write("began")
        self.stdout.flush()
        time.sleep(takes)


class Cron(Command):
    lock_name = "cron"
    once_within = 60
