"""What the support desk knows: help articles and orders."""

from django.db import models


class Article(models.Model):
    title = models.CharField(max_length=200)
    body = models.TextField()

    def __str__(self):
        return self.title


class Order(models.Model):
    number = models.CharField(max_length=20, unique=True)
    status = models.CharField(max_length=40)
    shipped_on = models.DateField(null=True, blank=True)

    def __str__(self):
        return self.number
