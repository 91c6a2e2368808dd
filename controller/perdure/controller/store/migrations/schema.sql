CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE meta (
	name VARCHAR NOT NULL, 
	value VARCHAR NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE controller (
	id VARCHAR NOT NULL, 
	started_at FLOAT NOT NULL, 
	lease_until FLOAT NOT NULL, 
	endpoint VARCHAR NOT NULL, 
	schema_revision VARCHAR DEFAULT '' NOT NULL, peer_url VARCHAR, peer_certificate VARCHAR, 
	PRIMARY KEY (id)
);
CREATE TABLE peer_message (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	body JSON NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_peer_message_job_id ON peer_message (job_id);
CREATE TABLE agent_connection (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	controller VARCHAR NOT NULL, 
	session_id VARCHAR NOT NULL, 
	since FLOAT NOT NULL, probe JSON, 
	PRIMARY KEY (job_id, task_index, generation, rank)
);
CREATE INDEX ix_agent_connection_controller ON agent_connection (controller);
CREATE TABLE job (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	priority INTEGER NOT NULL, 
	num_tasks INTEGER NOT NULL, 
	submitted_at FLOAT NOT NULL, 
	idempotency_key VARCHAR, 
	batch_rank INTEGER NOT NULL, 
	batch_size INTEGER NOT NULL, 
	cancel_at FLOAT, 
	cancel_grace_s FLOAT, 
	owner VARCHAR, 
	lease_epoch INTEGER NOT NULL, 
	wake_at FLOAT, 
	finalized BOOLEAN NOT NULL, 
	cleanup TEXT, cluster_id INTEGER, cluster_job INTEGER, service_id INTEGER, sweep_id INTEGER, 
	UNIQUE (idempotency_key)
);
CREATE INDEX ix_job_owner_unfinalized ON job (owner, finalized);
CREATE INDEX ix_job_unfinalized ON job (id) WHERE finalized IS 0;
CREATE INDEX ix_job_name_id ON job (name, id);
CREATE TABLE task (
	job_id INTEGER NOT NULL, 
	"index" INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	task_id VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	config JSON NOT NULL, 
	spec JSON NOT NULL, 
	secrets BLOB, 
	requirements JSON NOT NULL, 
	recovery JSON NOT NULL, 
	num_nodes INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	outcome VARCHAR, 
	message TEXT NOT NULL, 
	next_generation INTEGER NOT NULL, 
	last_offer JSON, 
	preempted_from JSON, 
	recovery_count INTEGER NOT NULL, 
	restarts_on_errors INTEGER NOT NULL, 
	consecutive_refusals INTEGER NOT NULL, 
	has_run BOOLEAN NOT NULL, 
	wake_at FLOAT, 
	started_at FLOAT, 
	run_since FLOAT, 
	run_seconds FLOAT NOT NULL, 
	ended_at FLOAT, 
	storage_ready BOOLEAN NOT NULL, 
	storage_requested BOOLEAN NOT NULL, 
	resumed_s FLOAT DEFAULT '0' NOT NULL, 
	saved_s FLOAT, 
	late_since FLOAT, 
	first_step BIGINT, 
	first_step_s FLOAT DEFAULT '0' NOT NULL, 
	estimated_s FLOAT, recovery_debt_until FLOAT DEFAULT '0' NOT NULL, last_step BIGINT, step_at FLOAT, busy_at FLOAT, stuck_since FLOAT, spent_usd FLOAT DEFAULT '0' NOT NULL, budget_warned BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (job_id, "index"), 
	FOREIGN KEY(job_id) REFERENCES job (id)
);
CREATE INDEX ix_task_task_id ON task (task_id);
CREATE INDEX ix_task_status_job ON task (status, job_id);
CREATE INDEX ix_task_ended ON task (status, ended_at, job_id);
CREATE TABLE purged_count (
	status VARCHAR NOT NULL, 
	tasks INTEGER NOT NULL, 
	PRIMARY KEY (status)
);
CREATE TABLE attempt (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	offer JSON NOT NULL, 
	requested_at FLOAT NOT NULL, 
	booted_at FLOAT, 
	running_at FLOAT, 
	stopped_at FLOAT, 
	gone_at FLOAT, 
	drain_until FLOAT, 
	reason VARCHAR, 
	terminating BOOLEAN NOT NULL, 
	failing_since FLOAT, 
	described_at FLOAT, 
	describe_requested_at FLOAT, loss_confirmed BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (job_id, task_index, generation)
);
CREATE INDEX ix_attempt_live ON attempt (job_id) WHERE state != 'GONE';
CREATE TABLE node (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	phase VARCHAR NOT NULL, 
	instance_id VARCHAR, 
	ip VARCHAR, 
	connected BOOLEAN NOT NULL, 
	disconnected_since FLOAT, 
	exit_code INTEGER, 
	failed_stage VARCHAR, 
	interrupted BOOLEAN NOT NULL, 
	mount_lost BOOLEAN NOT NULL, 
	message TEXT NOT NULL, 
	notice_deadline FLOAT, 
	gone_reason VARCHAR, 
	launched_at FLOAT, 
	ended_at FLOAT, 
	checkpoint_seq INTEGER NOT NULL, boot_nonce VARCHAR, 
	PRIMARY KEY (job_id, task_index, generation, rank)
);
CREATE INDEX ix_node_instance_id ON node (instance_id);
CREATE TABLE intent (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	token VARCHAR NOT NULL, 
	request JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	try_count INTEGER NOT NULL, 
	wake_at FLOAT, 
	done_at FLOAT, 
	outcome VARCHAR, 
	error TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (job_id, task_index, generation, kind)
);
CREATE INDEX ix_intent_open ON intent (done_at, job_id);
CREATE TABLE unavailable_offer (
	id INTEGER NOT NULL, 
	job_id INTEGER, 
	cloud VARCHAR NOT NULL, 
	region VARCHAR, 
	zone VARCHAR, 
	instance_type VARCHAR, 
	market VARCHAR, 
	kind VARCHAR NOT NULL, 
	code VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	until FLOAT NOT NULL, 
	from_preemption BOOLEAN NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_unavailable_offer_until ON unavailable_offer (until);
CREATE TABLE offer_observation (
	id INTEGER NOT NULL, 
	cloud VARCHAR NOT NULL, 
	region VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	instance_type VARCHAR NOT NULL, 
	market VARCHAR NOT NULL, 
	at FLOAT NOT NULL, 
	available BOOLEAN NOT NULL, 
	held_since FLOAT, 
	started_s FLOAT, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_offer_observation_at ON offer_observation (at);
CREATE TABLE region_offers (
	cloud VARCHAR NOT NULL, 
	region VARCHAR NOT NULL, 
	format_version INTEGER NOT NULL, 
	fetched_at FLOAT NOT NULL, 
	fetched_by VARCHAR NOT NULL, 
	claimed_by VARCHAR NOT NULL, 
	claimed_until FLOAT NOT NULL, 
	payload JSON, 
	PRIMARY KEY (cloud, region, format_version)
);
CREATE TABLE event (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	task_index INTEGER, 
	generation INTEGER, 
	rank INTEGER, 
	at FLOAT NOT NULL, 
	kind VARCHAR NOT NULL, 
	reason VARCHAR, 
	message TEXT NOT NULL, 
	data JSON NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_event_job ON event (job_id, id);
CREATE TABLE bucket (
	id INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	store VARCHAR NOT NULL, 
	bucket VARCHAR NOT NULL, 
	persistent BOOLEAN NOT NULL, 
	created BOOLEAN NOT NULL, 
	removed_at FLOAT, 
	PRIMARY KEY (id), 
	UNIQUE (job_id, store, bucket)
);
CREATE INDEX ix_bucket_job_id ON bucket (job_id);
CREATE TABLE log_head (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	chunks INTEGER NOT NULL, 
	PRIMARY KEY (job_id, task_index, generation)
);
CREATE TABLE log_chunk (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	start BIGINT NOT NULL, 
	length INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (job_id, task_index, generation, number), 
	UNIQUE (job_id, task_index, generation, rank, start)
);
CREATE TABLE blob (
	digest VARCHAR NOT NULL, 
	size BIGINT NOT NULL, 
	last_used_at FLOAT NOT NULL, 
	uploaded BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (digest)
);
CREATE TABLE blob_chunk (
	digest VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (digest, number)
);
CREATE INDEX ix_job_cluster ON job (cluster_id, cluster_job) WHERE cluster_id IS NOT NULL;
CREATE TABLE cluster (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR NOT NULL, 
	active_name VARCHAR, 
	user VARCHAR NOT NULL, 
	wanted VARCHAR NOT NULL, 
	cause VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	launched_at FLOAT NOT NULL, 
	active_at FLOAT NOT NULL, 
	autostop_s FLOAT, 
	autostop_down BOOLEAN NOT NULL, 
	recover BOOLEAN NOT NULL, 
	next_job INTEGER NOT NULL, 
	config JSON NOT NULL, 
	secrets BLOB, 
	resources VARCHAR NOT NULL, 
	command TEXT NOT NULL, 
	idempotency_key VARCHAR, 
	starts INTEGER NOT NULL, 
	UNIQUE (active_name), 
	UNIQUE (idempotency_key)
);
CREATE INDEX ix_cluster_name ON cluster (name, id);
CREATE TABLE cluster_slot (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	cluster_id INTEGER NOT NULL, 
	host_job_id INTEGER NOT NULL, 
	host_generation INTEGER NOT NULL, 
	host_rank INTEGER NOT NULL, 
	ip VARCHAR, 
	token VARCHAR NOT NULL, 
	cpus FLOAT NOT NULL, 
	memory_gib FLOAT NOT NULL, 
	gpus FLOAT NOT NULL, 
	gpu_shares JSON NOT NULL, 
	started_at FLOAT NOT NULL, 
	stop_at FLOAT, 
	ended_at FLOAT, 
	gone_reason VARCHAR, 
	PRIMARY KEY (job_id, task_index, generation, rank)
);
CREATE INDEX ix_cluster_slot_host ON cluster_slot (host_job_id, host_generation, ended_at);
CREATE INDEX ix_cluster_slot_cluster ON cluster_slot (cluster_id, ended_at);
CREATE TABLE notification (
	id INTEGER NOT NULL, 
	event_id VARCHAR NOT NULL, 
	channel VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	job_id INTEGER, 
	at FLOAT NOT NULL, 
	body JSON NOT NULL, 
	try_count INTEGER NOT NULL, 
	wake_at FLOAT NOT NULL, 
	leased_by VARCHAR, 
	leased_until FLOAT NOT NULL, 
	done_at FLOAT, 
	outcome VARCHAR, 
	error TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (event_id, channel)
);
CREATE INDEX ix_notification_pending ON notification (channel, id) WHERE done_at IS NULL;
CREATE INDEX ix_notification_done ON notification (done_at);
CREATE INDEX ix_job_service ON job (service_id) WHERE service_id IS NOT NULL;
CREATE TABLE service (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR NOT NULL, 
	active_name VARCHAR, 
	user VARCHAR NOT NULL, 
	wanted VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	version INTEGER NOT NULL, 
	mode VARCHAR NOT NULL, 
	port INTEGER, 
	secrets BLOB, 
	next_replica INTEGER NOT NULL, 
	target INTEGER NOT NULL, 
	above_since FLOAT, 
	below_since FLOAT, 
	ready_since FLOAT, 
	idempotency_key VARCHAR, owner VARCHAR, report JSON, 
	UNIQUE (active_name), 
	UNIQUE (port), 
	UNIQUE (idempotency_key)
);
CREATE INDEX ix_service_name ON service (name, id);
CREATE TABLE service_version (
	service_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	section JSON NOT NULL, 
	app_port INTEGER NOT NULL, 
	resources VARCHAR NOT NULL, 
	uses_spot BOOLEAN NOT NULL, 
	config BLOB, 
	ready_at FLOAT, 
	idempotency_key VARCHAR, failure TEXT, failed_at FLOAT, 
	PRIMARY KEY (service_id, version), 
	UNIQUE (idempotency_key)
);
CREATE TABLE service_replica (
	service_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	is_spot BOOLEAN NOT NULL, 
	created_at FLOAT NOT NULL, 
	job_id INTEGER, 
	ready_at FLOAT, 
	retired_at FLOAT, 
	retired_as VARCHAR, 
	message TEXT NOT NULL, 
	final_status VARCHAR, 
	ended_at FLOAT, revision INTEGER DEFAULT '0' NOT NULL, changes_to INTEGER, changes_at FLOAT, 
	PRIMARY KEY (service_id, number)
);
CREATE INDEX ix_service_replica_job ON service_replica (job_id);
CREATE TABLE user_account (
	name VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	disabled_at FLOAT, 
	max_jobs INTEGER, 
	max_running_jobs INTEGER, 
	budget_usd FLOAT, 
	budget_action VARCHAR DEFAULT 'keep' NOT NULL, 
	warned_month VARCHAR, 
	spent_month VARCHAR, 
	PRIMARY KEY (name)
);
CREATE TABLE user_token (
	id VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	label VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT, 
	last_used_at FLOAT, 
	revoked_at FLOAT, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_user_token_user ON user_token (user);
CREATE TABLE upload_owner (
	digest VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	PRIMARY KEY (digest, user)
);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	user VARCHAR NOT NULL, 
	token VARCHAR NOT NULL, 
	address VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	target VARCHAR NOT NULL, 
	outcome VARCHAR NOT NULL, 
	detail JSON NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX ix_audit_user ON audit (user, id);
CREATE INDEX ix_audit_at ON audit (at);
CREATE INDEX ix_job_user ON job (user, id);
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TABLE cluster_home (
	cluster_id INTEGER NOT NULL, 
	store VARCHAR NOT NULL, 
	bucket VARCHAR NOT NULL, 
	is_ready BOOLEAN NOT NULL, 
	problem TEXT NOT NULL, 
	tried_at FLOAT NOT NULL, 
	removed_at FLOAT, 
	PRIMARY KEY (cluster_id)
);
CREATE TABLE job_schedule (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name VARCHAR NOT NULL, 
	user VARCHAR NOT NULL, 
	cron VARCHAR NOT NULL, 
	time_zone VARCHAR NOT NULL, 
	missed VARCHAR NOT NULL, 
	overlaps BOOLEAN NOT NULL, 
	paused BOOLEAN NOT NULL, 
	tasks BLOB NOT NULL, 
	uploads JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	next_at FLOAT, 
	last_due_at FLOAT, 
	last_job_id INTEGER, 
	last_result TEXT NOT NULL, 
	UNIQUE (name)
);
CREATE INDEX ix_job_sweep ON job (sweep_id) WHERE sweep_id IS NOT NULL;
CREATE INDEX ix_job_cluster_unfinalized ON job (cluster_id, cluster_job) WHERE cluster_id IS NOT NULL AND finalized IS 0;
CREATE INDEX ix_cluster_slot_held ON cluster_slot (cluster_id) WHERE ended_at IS NULL;
CREATE TABLE service_event (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	service_id INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	kind VARCHAR NOT NULL, 
	version INTEGER, 
	replica INTEGER, 
	message TEXT NOT NULL
);
CREATE INDEX ix_service_event_service ON service_event (service_id, id);
CREATE TABLE node_metrics (
	job_id INTEGER NOT NULL, 
	task_index INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	updated_at FLOAT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (job_id, task_index, generation, rank)
);
CREATE INDEX ix_node_metrics_updated_at ON node_metrics (updated_at);
CREATE TABLE cluster_disk (
	cluster_id INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	instance_id VARCHAR NOT NULL, 
	offer JSON NOT NULL, 
	price_per_hour FLOAT NOT NULL, 
	stopped_at FLOAT, 
	spent_usd FLOAT NOT NULL, 
	PRIMARY KEY (cluster_id, rank)
);
CREATE TABLE cluster_ports (
	cluster_id INTEGER NOT NULL, 
	cloud VARCHAR NOT NULL, 
	region VARCHAR NOT NULL, 
	PRIMARY KEY (cluster_id, cloud, region)
);
CREATE TABLE home_rescue (
	cluster_id INTEGER NOT NULL, 
	rank INTEGER NOT NULL, 
	job_id INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	begun_at FLOAT NOT NULL, 
	saved_at FLOAT, 
	problem TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (cluster_id, rank)
);
