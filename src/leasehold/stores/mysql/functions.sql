-- The procedures of leasehold, version 1, beside the tables of layout 1: the plain case of a lock in one statement.
-- They decide nothing that is not plain: then they change nothing and return 0, and the client takes the steps itself.
-- They run with the rights of the caller. The program mysql needs a DELIMITER before them.

-- Acquires a name that nobody holds or waits for. Returns the token. A cell is that of a ticket that was released.
DROP PROCEDURE IF EXISTS leasehold_acquire_1;

CREATE PROCEDURE leasehold_acquire_1(
    p_space VARBINARY(512), p_name VARBINARY(512), p_ticket VARCHAR(22) CHARACTER SET ascii COLLATE ascii_bin,
    p_fair TINYINT, p_lease BIGINT, p_delay BIGINT, p_owner VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    p_meta VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, p_hint VARCHAR(20) CHARACTER SET ascii
) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_here, v_fence, v_blocked_until, v_now BIGINT;
    DECLARE v_token BIGINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    START TRANSACTION;
    SELECT id, fence, blocked_until INTO v_here, v_fence, v_blocked_until
    FROM leasehold_name WHERE space = p_space AND name = p_name FOR UPDATE SKIP LOCKED;
    IF v_here IS NOT NULL THEN
        SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) * 1000;
        IF v_blocked_until <= v_now THEN
            -- By an index: a small table would be scanned, with all entries that are deleted and wait for their purge.
            SELECT GREATEST(v_fence, meta.fence, v_now DIV 1000 - 1) + 1 INTO v_token FROM leasehold_meta meta
            LEFT JOIN leasehold_cell cell ON cell.space = p_space AND cell.name = CONCAT(x'ff', p_ticket)
            LEFT JOIN leasehold_entry entry FORCE INDEX (leasehold_entry_place) ON entry.name_id = v_here
            WHERE meta.one = 1 AND meta.version = 1 AND cell.version IS NULL AND entry.ticket IS NULL;
        END IF;
    END IF;
    IF v_token > 0 THEN
        UPDATE leasehold_name SET fence = v_token, used = v_now WHERE id = v_here;
        INSERT INTO leasehold_entry (name_id, ticket, place, token, expires, kind, exclusive, upgradeable, permits,
            most, fair, lease, delay, owner, meta, alongside, hint)
        VALUES (v_here, p_ticket, 0, v_token, v_now + p_lease, 'mutex', 1, 0, 1, 1, p_fair, p_lease, p_delay, p_owner,
            p_meta, '', p_hint);
    END IF;
    SELECT v_token;  -- before the commit: an error without this answer has changed nothing
    COMMIT;
END;

-- Releases a name that its holder alone has an entry at. Returns 1.
DROP PROCEDURE IF EXISTS leasehold_release_1;

CREATE PROCEDURE leasehold_release_1(
    p_space VARBINARY(512), p_name VARBINARY(512), p_ticket VARCHAR(22) CHARACTER SET ascii COLLATE ascii_bin
) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
    DECLARE v_here BIGINT;
    DECLARE v_others INT;
    DECLARE v_found BIGINT DEFAULT 0;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    START TRANSACTION;
    SELECT id INTO v_here FROM leasehold_name WHERE space = p_space AND name = p_name AND used + 600000000000
        >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) * 1000 FOR UPDATE SKIP LOCKED;
    IF v_here IS NOT NULL THEN
        -- Not as a condition of IF, which would lock what it reads, and wait for it: the entries of other names, too.
        SELECT COUNT(NULLIF(ticket, p_ticket)) INTO v_others FROM leasehold_entry FORCE INDEX (leasehold_entry_place)
        WHERE name_id = v_here;
        IF v_others = 0 THEN
            DELETE FROM leasehold_entry WHERE ticket = p_ticket AND name_id = v_here AND place = 0;
            SET v_found = ROW_COUNT();
        END IF;
    END IF;
    SELECT v_found;
    COMMIT;
END;
