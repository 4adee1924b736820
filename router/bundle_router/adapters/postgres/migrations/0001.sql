create table router_runs (
    run_id text collate "C" primary key,
    next_seq bigint not null default 0,
    head text not null,
    opened text not null,
    header text not null,
    ended text
);
comment on column router_runs.header is 'run.json as the run began; ended: as it was closed, null while it is open';
create table router_records (
    run_id text collate "C" not null references router_runs on delete cascade,
    seq bigint not null,
    file text not null,
    kind text not null,
    key text,
    branch text,
    attempt integer not null default 1,
    line text not null,
    primary key (run_id, seq)
);
create unique index router_records_key on router_records (run_id, kind, key, attempt)
    where key is not null and kind in ('route.decided', 'call.started');
create index router_records_kind on router_records (run_id, kind, seq);
create table router_catalogs (revision text primary key, catalog text not null);
create table router_run_catalogs (
    run_id text collate "C" not null references router_runs on delete cascade,
    revision text not null references router_catalogs,
    position integer not null,
    primary key (run_id, revision)
);
create table router_artifacts (sha256 text primary key, size bigint not null, data bytea);
comment on column router_artifacts.data is 'null: the bytes are in the object store';
create table router_run_artifacts (
    run_id text collate "C" not null references router_runs on delete cascade,
    sha256 text not null references router_artifacts,
    primary key (run_id, sha256)
);
create index router_run_artifacts_sha256 on router_run_artifacts (sha256);
create table router_labels (
    run_id text collate "C" not null references router_runs on delete cascade,
    position bigint generated always as identity,
    line text not null,
    primary key (run_id, position)
);
