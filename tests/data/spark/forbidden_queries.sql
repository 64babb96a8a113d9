FROM read_csv('{secret}')
FROM read_text('{secret}')
FROM read_blob('/proc/self/environ')
FROM '{secret}'
FROM read_csv('{tables}/../secret.csv')
FROM sniff_csv('{secret}')
FROM glob('{tables}/../*')
FROM read_parquet('http://127.0.0.1:1/x')
FROM query('COPY (SELECT 1) TO ''{secret}''')
COPY (SELECT 1) TO '{tables}/x.csv'
COPY stream_tips FROM '{secret}'
ATTACH '{tables}/x.db'
EXPORT DATABASE '{tables}/x'
EXPLAIN ANALYZE COPY (SELECT 1) TO '{tables}/x.csv'
CREATE TABLE mine AS SELECT 1
DROP VIEW stream_tips
DELETE FROM stream_tips
INSERT INTO stream_tips SELECT * FROM stream_tips
INSTALL httpfs
LOAD httpfs
SET memory_limit = '100GB'
SET enable_external_access = true
PRAGMA enable_profiling
CALL enable_logging()
FROM duckdb_secrets()
SELECT getenv('HOME')
SELECT current_setting('memory_limit')
FROM duckdb_settings()
FROM duckdb_functions()
FROM enable_logging(storage='file', storage_path='{tables}/log')
FROM enable_profiling(save_location='{tables}/profile')
FROM checkpoint()
FROM read_text('{tables}/token')
FROM read_csv('{tables}/token')
FROM glob('{tables}/*')
FROM '{tables}/token.csv'
FROM parquet_scan('{tables}/*/*.parquet')
SELECT * FROM ceramic.rows.raw_events
SELECT (SELECT content FROM read_text('{tables}/token'))
WITH t AS (FROM read_text('{tables}/token')) FROM t
SELECT *, (WITH "{tables}/t.csv" AS (SELECT 1) SELECT 1) FROM '{tables}/t.csv'
SELECT *, (WITH "{tables}/*" AS (SELECT 1) SELECT 1) FROM '{tables}/*'
SELECT *, (WITH sqlite_master AS (SELECT 1) SELECT 1) FROM sqlite_master
SELECT *, (WITH Duckdb_Views AS (SELECT 1) SELECT 1) FROM duckdb_views
SELECT write_log('x')
SELECT sleep_ms(10)
SELECT nextval('s')
SELECT setseed(0.5)
SELECT list_transform([1], lambda x: getvariable('x'))
SELECT sum(1) FILTER (WHERE sleep_ms(10) IS NULL)
FROM json_execute_serialized_sql('x')
FROM query_table(['stream_tips'])
