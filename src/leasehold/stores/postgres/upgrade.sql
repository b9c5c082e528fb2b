-- From layout 1 to layout 2: the new columns, then the functions of before. Not to be run by hand: see `_sql.tables`.
ALTER TABLE leasehold_name
    ADD COLUMN IF NOT EXISTS entries BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder TEXT COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS holder_token BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder_expires BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder_fair SMALLINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder_lease BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder_delay BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder_owner TEXT NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS holder_meta TEXT NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS refused TEXT NOT NULL DEFAULT '';

DROP FUNCTION IF EXISTS leasehold_acquire_1(bytea, bytea, text, smallint, bigint, bigint, text, text, text);

DROP FUNCTION IF EXISTS leasehold_release_1(bytea, bytea, text);
