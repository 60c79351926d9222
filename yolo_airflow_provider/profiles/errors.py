"""What can be wrong with a profile store, as one exception each."""

from __future__ import annotations


class StoreError(RuntimeError):
    """The store cannot be opened or used; the message names it (never a password) and says what to do."""


class StoreUnavailable(StoreError):
    """The database could not be reached, or could not serve, for as long as it was tried: an outage.

    The only one of these errors that waiting may cure.
    """


class StoreDenied(StoreError):
    """The database does not let this role in, or not do this: a password, a right, a read-only role."""


class StoreVersionError(StoreError):
    """The store was written by a newer version of this package; it is left as it is."""


class StoreOutdatedError(StoreError):
    """The store is empty or of an older version, and it was not asked for to upgrade it here."""


class RowError(ValueError):
    """A row that the store refuses; the message names the row, the field and the value."""
