import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "website.settings")
application = get_wsgi_application()

if os.environ.get("DJ_HELD_BY_MASTER"):
    from leasehold.integrations.django import locks

    held = locks.lock("of the master").acquire()  # before the fork of the workers
