-- The tables of leasehold, layout 2. Each column is explained here and nowhere else. Running this twice does no harm.
-- A user who may read them sees everything: names, holders, waiters, their meta data, and cells.
-- All times are nanoseconds since 1970 by this server's clock.

-- One row: the layout of the tables.
CREATE TABLE IF NOT EXISTS leasehold_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,  -- of this layout
    fence BIGINT NOT NULL      -- highest token of all dropped names: new names begin above it
);

-- One row for each name in use, kept for an hour after. A transaction that locks it may change the name's entries.
-- The holder of a free name that was acquired as a plain lock is in this row, and has no entry.
CREATE TABLE IF NOT EXISTS leasehold_name (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space BYTEA NOT NULL,      -- the client's namespace, UTF-8
    name BYTEA NOT NULL,       -- as the user gave it, UTF-8: compared byte by byte
    fence BIGINT NOT NULL,     -- highest token granted
    blocked_until BIGINT NOT NULL,    -- the name cannot be acquired before this time (lock delay)
    used BIGINT NOT NULL,      -- last use, within ten minutes: decides when to drop the row
    entries BIGINT NOT NULL DEFAULT 0,  -- how many rows of leasehold_entry it has; 0 with mode=session
    holder TEXT COLLATE "C" NOT NULL DEFAULT '',  -- ticket of the holder in this row; empty: none
    holder_token BIGINT NOT NULL DEFAULT 0,    -- its fencing token; this and the next mean nothing without a holder
    holder_expires BIGINT NOT NULL DEFAULT 0,  -- when its lease expires unless renewed
    holder_fair SMALLINT NOT NULL DEFAULT 0,   -- 1: a fair lock
    holder_lease BIGINT NOT NULL DEFAULT 0,    -- length of its lease, nanoseconds
    holder_delay BIGINT NOT NULL DEFAULT 0,    -- requested lock delay, nanoseconds
    holder_owner TEXT NOT NULL DEFAULT '',     -- host:pid:client, shown to people
    holder_meta TEXT NOT NULL DEFAULT '',      -- meta data of the owner, JSON, shown to people
    refused TEXT NOT NULL DEFAULT '',  -- the last 64 tickets that were released before their claim had an answer
    UNIQUE (space, name)
) WITH (fillfactor = 70);

-- One row for each ticket that holds or waits, but for the holder in its name's row.
CREATE TABLE IF NOT EXISTS leasehold_entry (
    name_id BIGINT NOT NULL,   -- leasehold_name.id
    place BIGINT NOT NULL,     -- 0: a holder; else the number in the queue
    ticket TEXT COLLATE "C" NOT NULL,  -- 128 random bits that the client chose
    token BIGINT,              -- fencing token of a holder; NULL for a waiter
    expires BIGINT NOT NULL,   -- when the entry expires unless renewed
    kind TEXT NOT NULL,        -- what the name is used as: mutex, rw, semaphore
    exclusive SMALLINT NOT NULL,    -- 1: exclusive, 0: shared with other readers
    upgradeable SMALLINT NOT NULL,  -- 1: a reader that may become the writer, one at a time
    permits INTEGER NOT NULL,  -- number of permits that it takes
    most INTEGER NOT NULL,     -- total number of permits
    fair SMALLINT NOT NULL,    -- 1: granted in order of arrival only
    lease BIGINT NOT NULL,     -- length of its lease, nanoseconds
    delay BIGINT NOT NULL,     -- requested lock delay, nanoseconds
    owner TEXT NOT NULL,       -- host:pid:client, shown to people
    meta TEXT NOT NULL,        -- meta data of the owner, JSON, shown to people
    alongside TEXT NOT NULL,      -- ticket of the same holder that it may enter alongside; empty: none
    hint TEXT NOT NULL,        -- channel on which its client listens; empty: it polls
    PRIMARY KEY (name_id, place, ticket)
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX IF NOT EXISTS leasehold_entry_ticket ON leasehold_entry (ticket, name_id);

-- One row for each cell: a value with a version.
CREATE TABLE IF NOT EXISTS leasehold_cell (
    space BYTEA NOT NULL,      -- the client's namespace, UTF-8
    name BYTEA NOT NULL,       -- as the user gave it, UTF-8: compared byte by byte
    value BYTEA,               -- NULL: added, not written yet
    version BIGINT NOT NULL,   -- 1 at the first change, then incremented
    fence BIGINT NOT NULL,     -- highest fencing token that ever wrote here
    expires BIGINT NOT NULL,   -- when it expires unless changed again
    ttl BIGINT NOT NULL,      -- time to live after a change, nanoseconds
    PRIMARY KEY (space, name)
);

CREATE INDEX IF NOT EXISTS leasehold_cell_expires ON leasehold_cell (expires);

INSERT INTO leasehold_meta (one, version, fence) VALUES (1, 2, 0) ON CONFLICT DO NOTHING;
