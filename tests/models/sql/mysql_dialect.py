"""MySQL's statements in SQLite's words, and the values that are spelled in them."""

from __future__ import annotations

import re
from functools import cache

from leasehold.stores._sql.transport import Value
from leasehold.stores.mysql.statements import CLOCK, WRITABLE

WORDS = (
    (r"(?s)DELETE (\w+) FROM (\(.*\)) \w+ STRAIGHT_JOIN .*", r"DELETE FROM \1 WHERE (space, name) IN \2"),
    (r"FOR UPDATE( SKIP LOCKED)?", ""),
    (r"FORCE INDEX \(\w+\)", ""),
    (r"\bGREATEST\(", "max("),
    (r"\bDIV\b", "/"),
    (
        r"ON DUPLICATE KEY UPDATE\s+leasehold_name\.fence = (.*) meta\.fence(.*)\s+leasehold_name\.used = ",
        r"WHERE true ON CONFLICT (space, name) DO UPDATE SET fence = \1 (SELECT fence FROM leasehold_meta)\2 used = ",
    ),
    (r"(meta\s+)ON DUPLICATE KEY UPDATE [\w.]+ = [\w.]+", r"\1WHERE true ON CONFLICT DO NOTHING"),
    (r"ON DUPLICATE KEY UPDATE [\w.]+ = [\w.]+", "ON CONFLICT DO NOTHING"),
    (r"^\s*\(SELECT", "SELECT * FROM (SELECT"),
    (r"\(\s*\(SELECT", "(SELECT * FROM (SELECT"),
    (r"UNION ALL\s*\(SELECT", "UNION ALL SELECT * FROM (SELECT"),
    (r"BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY", "INTEGER PRIMARY KEY AUTOINCREMENT"),
    (r"UNIQUE KEY \w+ \(", "UNIQUE ("),
    (r",\s*KEY \w+ \([\w, ]+\)", ""),
    (r"CHARACTER SET \w+ COLLATE \w+", ""),
    (r"VARBINARY\(\d+\)|MEDIUMBLOB", "BLOB"),
    (r"ENGINE = InnoDB( ROW_FORMAT = DYNAMIC)?", ""),
    (r"INSERT IGNORE", "INSERT OR IGNORE"),
)
"""MySQL's words, and SQLite's."""

LITERAL = re.compile(
    r"_utf8mb4 x'(?P<hex>[0-9a-f]*)'|\bx'(?P<blob>[0-9a-f]*)'|'(?P<plain>[^']*)'|(?<![\w.])(?P<int>-?\d+)\b"
)
"""A value as `transports.mysql.base.literal` spells it."""


@cache
def translated(text: str) -> str:
    """Say a statement in SQLite's words."""
    for theirs, ours in WORDS:
        text = re.sub(theirs, ours, text)
    return text


def read_back(statement: str) -> tuple[str, list[Value]]:
    """Return a statement with ``?`` for each literal, and their values."""
    values = list[Value]()

    def value(found: re.Match[str]) -> str:
        match found.lastgroup:
            case "hex":
                values.append(bytes.fromhex(found["hex"]).decode())
            case "blob":
                values.append(bytes.fromhex(found["blob"]))
            case "plain":
                values.append(found["plain"])
            case _:
                values.append(int(found["int"]))
        return "?"

    return LITERAL.sub(value, statement.replace(CLOCK, "server_clock()").replace(WRITABLE, "TRUE")), values
