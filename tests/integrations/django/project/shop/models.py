from django.db import models

from leasehold.integrations.django.fenced import FencedManager, FenceField


class Shelf(models.Model):
    label = models.TextField()


class Stock(models.Model):
    left_over = models.IntegerField(default=10)
    shelf = models.ForeignKey(Shelf, null=True, on_delete=models.CASCADE)
    fence = FenceField()
    objects = FencedManager()


class Fresh(Stock):
    """Multi-table inheritance: its own field is in another table than the fence."""

    days = models.IntegerField(default=3)


class Unfenced(models.Model):
    """A fenced manager and no fence."""

    objects = FencedManager()


class Run(models.Model):
    """One row for each time that a migration was carried out."""

    by = models.TextField()
