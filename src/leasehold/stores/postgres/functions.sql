-- The functions of leasehold, version 1, beside the tables of layout 1: the plain case of a lock in one statement.
-- They decide nothing that is not plain: then they change nothing and return 0, and the client takes the steps itself.
-- They run with the rights of the caller, on the tables that its search_path selects. Running this twice does no harm.

-- Acquires a name that nobody holds or waits for: space, name, ticket, fair, lease, delay, owner, meta, hint.
-- Returns the token.
CREATE OR REPLACE FUNCTION leasehold_acquire_1(bytea, bytea, text, smallint, bigint, bigint, text, text, text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    here bigint;
    at bigint;
    granted bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('transaction_read_only') <> 'off'
    THEN
        RETURN 0;  -- a statement would not see what was committed before it began, or must not write
    END IF;
    SELECT id INTO here FROM leasehold_name WHERE space = $1 AND name = $2 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    at := (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint;
    -- From here on: what was committed before the row was locked. The cell is that of a ticket that was released.
    UPDATE leasehold_name SET fence = greatest(leasehold_name.fence, meta.fence, at / 1000 - 1) + 1, used = at
    FROM leasehold_meta meta WHERE id = here AND blocked_until <= at AND meta.version = 1
    AND NOT EXISTS (SELECT FROM leasehold_entry WHERE name_id = here)
    AND NOT EXISTS (SELECT FROM leasehold_cell cell WHERE cell.space = $1 AND cell.name = '\xff' || $3::bytea)
    RETURNING leasehold_name.fence INTO granted;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    INSERT INTO leasehold_entry (name_id, ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair,
        lease, delay, owner, meta, alongside, hint)
    VALUES (here, $3, 0, granted, at + $5, 'mutex', 1, 0, 1, 1, $4, $5, $6, $7, $8, '', $9);
    RETURN granted;
END
$$;

-- Releases a name that its holder alone has an entry at: space, name, ticket. Returns 1.
CREATE OR REPLACE FUNCTION leasehold_release_1(bytea, bytea, text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    here bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' OR current_setting('transaction_read_only') <> 'off'
    THEN
        RETURN 0;
    END IF;
    SELECT id INTO here FROM leasehold_name, leasehold_meta meta
    WHERE space = $1 AND name = $2 AND meta.version = 1
    AND used + 600000000000 >= (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint
    FOR UPDATE OF leasehold_name SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    DELETE FROM leasehold_entry WHERE name_id = here AND ticket = $3 AND place = 0
    AND NOT EXISTS (SELECT FROM leasehold_entry WHERE name_id = here AND ticket <> $3);
    RETURN CASE WHEN FOUND THEN 1 ELSE 0 END;
END
$$;
