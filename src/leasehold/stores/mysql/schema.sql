-- The tables of leasehold, layout 2. Each column is explained here and nowhere else. Running this twice does no harm.
-- A user who may read them sees everything: names, holders, waiters, their meta data, and cells.
-- All times are nanoseconds since 1970 by this server's clock.

-- One row: the layout of the tables.
CREATE TABLE IF NOT EXISTS leasehold_meta (
    one TINYINT NOT NULL PRIMARY KEY,
    version INT NOT NULL,      -- of this layout
    fence BIGINT NOT NULL      -- highest token of all dropped names: new names begin above it
) ENGINE = InnoDB;

-- One row for each name in use, kept for an hour after. A transaction that locks it may change the name's entries.
-- The holder of a free name that was acquired as a plain lock is in this row, and has no entry.
CREATE TABLE IF NOT EXISTS leasehold_name (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    space VARBINARY(512) NOT NULL,  -- the client's namespace, UTF-8
    name VARBINARY(512) NOT NULL,   -- as the user gave it, UTF-8: compared byte by byte
    fence BIGINT NOT NULL,     -- highest token granted
    blocked_until BIGINT NOT NULL,    -- the name cannot be acquired before this time (lock delay)
    used BIGINT NOT NULL,      -- last use, within ten minutes: decides when to drop the row
    entries BIGINT NOT NULL DEFAULT 0,  -- how many rows of leasehold_entry it has; 0 with mode=session
    -- the ticket of the holder in this row; empty: none
    holder VARCHAR(22) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    holder_token BIGINT NOT NULL DEFAULT 0,    -- its fencing token; this and the next mean nothing without a holder
    holder_expires BIGINT NOT NULL DEFAULT 0,  -- when its lease expires unless renewed
    holder_fair TINYINT NOT NULL DEFAULT 0,    -- 1: a fair lock
    holder_lease BIGINT NOT NULL DEFAULT 0,    -- length of its lease, nanoseconds
    holder_delay BIGINT NOT NULL DEFAULT 0,    -- requested lock delay, nanoseconds
    holder_owner VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',  -- host:pid:client
    -- meta data of the owner, JSON
    holder_meta VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    -- the last 64 tickets that were released before their claim had an answer
    refused VARCHAR(1472) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    UNIQUE KEY leasehold_name_exact (space, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row for each ticket that holds or waits, but for the holder in its name's row.
CREATE TABLE IF NOT EXISTS leasehold_entry (
    name_id BIGINT NOT NULL,   -- leasehold_name.id
    place BIGINT NOT NULL,     -- 0: a holder; else the number in the queue
    ticket VARCHAR(22) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- 128 random bits that the client chose
    token BIGINT,              -- fencing token of a holder; NULL for a waiter
    expires BIGINT NOT NULL,   -- when the entry expires unless renewed
    kind VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,    -- what the name is used as: mutex, rw, semaphore
    exclusive TINYINT NOT NULL,     -- 1: exclusive, 0: shared with other readers
    upgradeable TINYINT NOT NULL,   -- 1: a reader that may become the writer, one at a time
    permits INT NOT NULL,      -- number of permits that it takes
    most INT NOT NULL,         -- total number of permits
    fair TINYINT NOT NULL,     -- 1: granted in order of arrival only
    lease BIGINT NOT NULL,     -- length of its lease, nanoseconds
    delay BIGINT NOT NULL,     -- requested lock delay, nanoseconds
    owner VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- host:pid:client, shown to people
    meta VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,  -- meta data of the owner, JSON
    alongside VARCHAR(22) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- ticket that it may enter alongside; empty: none
    hint VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,    -- mode=session: number of its session; else empty
    PRIMARY KEY (ticket, name_id),
    KEY leasehold_entry_place (name_id, place),
    KEY leasehold_entry_alongside (name_id, alongside)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row for each cell: a value with a version.
CREATE TABLE IF NOT EXISTS leasehold_cell (
    space VARBINARY(512) NOT NULL,  -- the client's namespace, UTF-8
    name VARBINARY(512) NOT NULL,   -- as the user gave it, UTF-8: compared byte by byte
    value MEDIUMBLOB,          -- NULL: added, not written yet
    version BIGINT NOT NULL,   -- 1 at the first change, then incremented
    fence BIGINT NOT NULL,     -- highest fencing token that ever wrote here
    expires BIGINT NOT NULL,   -- when it expires unless changed again
    ttl BIGINT NOT NULL,      -- time to live after a change, nanoseconds
    PRIMARY KEY (space, name),
    KEY leasehold_cell_expires (expires)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO leasehold_meta (one, version, fence) VALUES (1, 2, 0);
