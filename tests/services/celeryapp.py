"""The Celery app of a site, as a project has one."""

import os

from celery import Celery

app = Celery("site", broker=os.environ["SITE_BROKER"])
app.conf.task_default_queue = os.environ["SITE_QUEUE"]
app.autodiscover_tasks(["mlango"])
