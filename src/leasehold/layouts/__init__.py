"""Locks in the format of another library, so that a program in another language can share them.

A layout speaks the format of that library on the connection of one of our stores. It is chosen in the URL, as in
``redis://localhost?layout=plain``. It keeps each promise of ours that the format allows, and refuses the others when a
lock is made, with the reason. `docs/interop.md` says what is shared, and with which versions.

`leasehold.stores.registry` has the table of the schemes that have layouts.
"""
