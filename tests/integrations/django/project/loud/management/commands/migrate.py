from django.core.management.commands.migrate import Command as DjangoCommand


class Command(DjangoCommand):
    def handle(self, *args, **options):
        self.stdout.write("loud: migrating")
        super().handle(*args, **options)
