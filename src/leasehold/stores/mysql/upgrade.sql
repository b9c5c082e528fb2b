-- From layout 1 to layout 2: the new columns, then the functions of before. Not to be run by hand: see `_sql.tables`.
ALTER TABLE leasehold_name
    ADD COLUMN entries BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN holder VARCHAR(22) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD COLUMN holder_token BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN holder_expires BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN holder_fair TINYINT NOT NULL DEFAULT 0,
    ADD COLUMN holder_lease BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN holder_delay BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN holder_owner VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    ADD COLUMN holder_meta VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    ADD COLUMN refused VARCHAR(1472) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '';

DROP PROCEDURE IF EXISTS leasehold_acquire_1;

DROP PROCEDURE IF EXISTS leasehold_release_1;
