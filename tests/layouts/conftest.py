"""The folder is on the path of its subfolders, whose tests share its modules."""
