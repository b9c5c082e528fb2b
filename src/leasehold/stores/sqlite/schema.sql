-- The tables of the SQLite store, layout 2. Each column is explained here and nowhere else.
-- A user who may read the file sees everything: names, holders, waiters, their meta data, and cells.
-- All times are nanoseconds of this host's boot-time clock, so they mean nothing after a boot; see host.boot.

-- One row: the clock to which the times in this file belong.
CREATE TABLE host (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    boot TEXT NOT NULL,       -- identity of the boot; another one voids every holder, entry and delay
    clock TEXT NOT NULL,      -- offset of the boot-time clock in this time namespace; empty where there is none
    fence INTEGER NOT NULL    -- highest token of all dropped names: new names begin above it
);

-- One row for each name in use, and for an hour after.
-- The holder of a free name that was acquired as a plain lock is in this row, and has no entry.
CREATE TABLE name (
    id INTEGER PRIMARY KEY,
    space BLOB NOT NULL,      -- the client's namespace, UTF-8
    name BLOB NOT NULL,       -- as the user gave it, UTF-8
    fence INTEGER NOT NULL,   -- highest token granted
    blocked_until INTEGER NOT NULL,  -- the name cannot be acquired before this time (lock delay)
    used INTEGER NOT NULL,    -- last use, within ten minutes: decides when to drop the row
    holder TEXT NOT NULL DEFAULT '',            -- ticket of the holder in this row; empty: none
    holder_token INTEGER NOT NULL DEFAULT 0,    -- its fencing token; this and what follows mean nothing without one
    holder_expires INTEGER NOT NULL DEFAULT 0,  -- when its lease expires unless renewed
    holder_fair INTEGER NOT NULL DEFAULT 0,     -- 1: a fair lock
    holder_lease INTEGER NOT NULL DEFAULT 0,    -- length of its lease
    holder_delay INTEGER NOT NULL DEFAULT 0,    -- requested lock delay
    holder_owner TEXT NOT NULL DEFAULT '',      -- host:pid:client, shown to people
    holder_meta TEXT NOT NULL DEFAULT '',       -- meta data of the owner, JSON, shown to people
    holder_pid INTEGER NOT NULL DEFAULT 0,      -- its process, as in table entry
    holder_started INTEGER NOT NULL DEFAULT 0,
    holder_pids TEXT NOT NULL DEFAULT '',
    UNIQUE (space, name)
);

-- One row for each ticket that holds or waits, but for the holder in its name's row.
-- The key keeps holders first, then waiters in order of arrival.
CREATE TABLE entry (
    name_id INTEGER NOT NULL,   -- name.id
    place INTEGER NOT NULL,     -- 0: a holder; else the number in the queue
    ticket TEXT NOT NULL,       -- 128 random bits that the client chose
    token INTEGER,              -- fencing token of a holder; NULL for a waiter
    expires INTEGER NOT NULL,   -- when the entry expires unless renewed
    kind TEXT NOT NULL,         -- what the name is used as: mutex, rw, semaphore
    exclusive INTEGER NOT NULL, -- 1: exclusive, 0: shared with other readers
    upgradeable INTEGER NOT NULL, -- 1: a reader that may become the writer, one at a time
    permits INTEGER NOT NULL,   -- number of permits that it takes
    most INTEGER NOT NULL,      -- total number of permits
    fair INTEGER NOT NULL,      -- 1: granted in order of arrival only
    lease INTEGER NOT NULL,     -- length of its lease
    delay INTEGER NOT NULL,     -- requested lock delay
    owner TEXT NOT NULL,        -- host:pid:client, shown to people
    meta TEXT NOT NULL,         -- meta data of the owner, JSON, shown to people
    pid INTEGER NOT NULL,       -- its process ...
    started INTEGER NOT NULL,   -- ... when that began, in ticks since boot: a pid is used again, the pair is not
    pids TEXT NOT NULL,         -- ... and the pid namespace in which the number counts; empty where there is none
    hint TEXT NOT NULL,         -- network namespace, UDP port and key to wake a waiter; empty: it polls
    alongside TEXT NOT NULL,       -- ticket of the same holder that it may enter alongside; empty: none
    PRIMARY KEY (name_id, place, ticket)
) WITHOUT ROWID;

CREATE UNIQUE INDEX entry_of_ticket ON entry (ticket, name_id);
CREATE INDEX entry_beside ON entry (name_id) WHERE alongside <> '';

-- One row for each cell: a value with a version.
CREATE TABLE cell (
    id INTEGER PRIMARY KEY,
    space BLOB NOT NULL,      -- the client's namespace, UTF-8
    name BLOB NOT NULL,       -- as the user gave it, UTF-8
    value BLOB NOT NULL,
    version INTEGER NOT NULL, -- 1 at the first change, then incremented
    fence INTEGER NOT NULL,   -- highest fencing token that ever wrote here
    expires INTEGER NOT NULL, -- when it expires unless changed again
    ttl INTEGER NOT NULL,    -- time to live after a change; starts again after a boot
    UNIQUE (space, name)
);
