-- What the recorded bytes are of. Run by record.sh in an empty database.
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'glad');
CREATE DOMAIN shop.code AS text CHECK (value <> 'forbidden');
CREATE TYPE shop.pair AS (a int, b text);

CREATE TABLE shop.every (
    id bigint PRIMARY KEY,
    c_bool boolean, c_int2 smallint, c_int4 integer, c_int8 bigint,
    c_float4 real, c_float8 double precision, c_numeric numeric, c_numeric_scaled numeric(12, 4),
    c_text text, c_varchar varchar(40), c_char char(5), c_name name,
    c_bytea bytea, c_uuid uuid, c_json json, c_jsonb jsonb,
    c_date date, c_time time, c_timestamp timestamp, c_timestamptz timestamptz, c_interval interval,
    c_inet inet, c_array int[], c_texts text[], c_range int4range, c_xml xml,
    c_mood shop.mood, c_code shop.code, c_pair shop.pair
);
CREATE TABLE shop.plain (id bigint PRIMARY KEY, note text);
CREATE TABLE shop.whole (id bigint, note text);
ALTER TABLE shop.whole REPLICA IDENTITY FULL;
CREATE TABLE shop.child (id serial PRIMARY KEY, plain_id bigint REFERENCES shop.plain);
CREATE TABLE shop.large (id bigint PRIMARY KEY, counter int, payload text);
ALTER TABLE shop.large ALTER payload SET STORAGE EXTERNAL;
CREATE TABLE shop.shifting (id bigint PRIMARY KEY, first text, second text);
CREATE TABLE shop.parted (id bigint PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE shop.parted_low PARTITION OF shop.parted FOR VALUES FROM (0) TO (100);
CREATE TABLE "Shop Ünïcode" ("Kéy ""q""" bigint PRIMARY KEY, "värde" text);
CREATE PUBLICATION leaves FOR ALL TABLES;
CREATE PUBLICATION roots FOR TABLE shop.parted WITH (publish_via_partition_root);
CREATE PUBLICATION "b,in""ary'); DROP--" FOR TABLE shop.every;

SELECT 1 FROM pg_create_logical_replication_slot('recorded', 'pgoutput');

INSERT INTO shop.every VALUES (
    1, true, -32768, 2147483647, -9223372036854775808,
    1.5, -0.1, 123456789012345678901234567890.12345, 1.10,
    E'line\none "quoted" \\ é 漢字', 'varchar', 'ch', 'name',
    '\x00ff5c27', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"b":1, "a" : 1.10, "b":2}', '{"b":1, "a" : 1.10}',
    '2024-02-03', '04:05:06.789', '2024-02-03 04:05:06.123456', '2024-02-03 04:05:06.123456+00', '1 day 02:03:04',
    '10.1.2.3/24', '{1,NULL,3}', '{"a,b",""}', '[1,5)', '<a>1</a>',
    'glad', 'X1', '(7,"x y")');
INSERT INTO shop.every (id) VALUES (2);
INSERT INTO shop.every (id, c_numeric, c_text, c_varchar, c_bytea, c_jsonb, c_timestamptz, c_array, c_texts, c_code)
    VALUES (3, 'NaN', '', '', '', '{}', 'infinity', '{}', '{}', '');

INSERT INTO shop.plain VALUES (1, 'one');
UPDATE shop.plain SET note = NULL WHERE id = 1;
UPDATE shop.plain SET id = 10 WHERE id = 1;
INSERT INTO shop.plain VALUES (10, 'ten') ON CONFLICT (id) DO UPDATE SET note = excluded.note;
DELETE FROM shop.plain WHERE id = 10;

INSERT INTO shop.whole VALUES (1, 'before');
UPDATE shop.whole SET note = 'after';
DELETE FROM shop.whole;

INSERT INTO shop.large VALUES (1, 0, repeat('x', 2100));
UPDATE shop.large SET counter = 1;

BEGIN;
INSERT INTO shop.shifting VALUES (1, 'f1', 's1');
ALTER TABLE shop.shifting ADD third text;
INSERT INTO shop.shifting VALUES (2, 'f2', 's2', 't2');
ALTER TABLE shop.shifting DROP first;
INSERT INTO shop.shifting VALUES (3, 's3', 't3');
ALTER TABLE shop.shifting RENAME second TO renamed;
INSERT INTO shop.shifting VALUES (4, 's4', 't4');
COMMIT;

BEGIN;
INSERT INTO shop.plain VALUES (20, 'kept');
SAVEPOINT half;
INSERT INTO shop.plain VALUES (21, 'rolled back');
ROLLBACK TO half;
INSERT INTO shop.plain VALUES (22, 'kept too');
COMMIT;
COPY shop.plain FROM STDIN;
30	copied
31	\N
\.

SELECT 1 FROM pg_logical_emit_message(true, 'greeting', 'hello');
INSERT INTO shop.parted VALUES (5, 'in the low part');
INSERT INTO "Shop Ünïcode" VALUES (1, 'ö');

SELECT 1 FROM pg_replication_origin_create('elsewhere');
SELECT 1 FROM pg_replication_origin_session_setup('elsewhere');
BEGIN;
SELECT 1 FROM pg_replication_origin_xact_setup('1A/2B', '2024-02-03 04:05:06+00');
INSERT INTO shop.plain VALUES (40, 'from elsewhere');
COMMIT;
SELECT 1 FROM pg_replication_origin_session_reset();

TRUNCATE shop.plain, shop.whole RESTART IDENTITY CASCADE;
