"""The settings of the tests' project; what differs comes from the environment as JSON."""

import json
import os

import pymysql

pymysql.install_as_MySQLdb()

SECRET_KEY = "for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "website.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": json.loads(os.environ["DJ_DATABASE"])}
LEASEHOLD = json.loads(os.environ.get("DJ_LEASEHOLD", "{}"))
LEASEHOLD_MIGRATE = json.loads(os.environ.get("DJ_MIGRATE", "{}"))

INSTALLED_APPS = [
    *json.loads(os.environ.get("DJ_APPS", '["leasehold.integrations.django"]')),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
