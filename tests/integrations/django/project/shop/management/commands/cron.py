from shop.management.commands.nightly import Cron as Command

__all__ = ["Command"]
