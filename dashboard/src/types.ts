// The responses of the API that the pages use. They mirror perdure.sdk.connection.api_types.

export interface Job {
  job_id: number;
  task_index: number;
  num_tasks: number;
  name: string;
  task_name: string | null;
  status: string;
  reason: string | null;
  message: string | null;
  task_id: string;
  user: string;
  priority: number;
  submitted_at: string;
  started_at: string | null;
  ended_at: string | null;
  job_duration_s: number;
  total_duration_s: number;
  recovery_count: number;
  restarts_on_errors: number;
  resources: string;
  cluster_resources: string | null;
  num_nodes: number;
  cloud: string | null;
  region: string | null;
  zone: string | null;
  market: string | null;
  generation: number;
  cost_usd: number;
  on_demand_cost_usd: number;
  exit_code: number | null;
  cleanup: string | null;
  sweep_id: number | null;
}

export interface JobPage {
  now: string;
  jobs: Job[];
  counts: Record<string, number>;
  total: number;
}

export interface NodeRow {
  rank: number;
  instance_id: string | null;
  ip: string | null;
  phase: string;
  connected: boolean;
  exit_code: number | null;
}

export interface Attempt {
  task_index: number;
  generation: number;
  state: string;
  reason: string | null;
  cloud: string;
  region: string;
  zone: string;
  instance_type: string;
  market: string;
  price_per_hour: number;
  requested_at: string;
  running_at: string | null;
  stopped_at: string | null;
  gone_at: string | null;
  cost_usd: number;
  nodes: NodeRow[];
}

export interface TimelineEntry {
  at: string;
  kind: string;
  task_index: number | null;
  generation: number | null;
  rank: number | null;
  reason: string | null;
  message: string;
  data: Record<string, unknown>;
}

export interface JobDetail extends Job {
  now: string;
  tasks: Job[];
  attempts: Attempt[];
  timeline: TimelineEntry[];
  cluster: string | null;
  cluster_job: number | null;
}

/** A job with its newest attempts and entries of its timeline, and totals of all of them. */
export interface RecentJob extends JobDetail {
  num_attempts: number;
  num_events: number;
  preemptions: number;
  lost_s: number | null;
  lost_usd: number | null;
}

export interface TimelinePage {
  entries: (TimelineEntry & { id: number })[];
  num_matching: number;
  num_checkpoints: number;
}

export interface TaskSpec {
  task_index: number;
  name: string;
  yaml: string;
  config: Record<string, unknown>;
  secrets: string[];
}

export interface Offer {
  cloud: string;
  region: string;
  zone: string;
  instance_type: string;
  market: string;
  price_per_hour: number;
  accelerators: string | null;
}

export interface Plan {
  tasks: {
    name: string;
    num_nodes: number;
    offers: Offer[];
    total_offers: number;
    saving: number | null;
    unavailable: string[];
    strategy: string;
    strategy_reason: string;
  }[];
  warnings: string[];
}

export interface MarketOffer {
  cloud: string;
  region: string;
  zone: string;
  instance_type: string;
  accelerators: string | null;
  vcpus: number;
  memory_gib: number;
  spot_per_hour: number | null;
  on_demand_per_hour: number | null;
  avoided_until: string | null;
  avoided_why: string | null;
  last_tried: string | null;
  was_available: boolean | null;
  lost_in_a_day: number;
}

export interface MarketTable {
  now: string;
  offers: MarketOffer[];
  total: number;
  avoided: { cloud: string; region: string | null; zone: string | null; instance_type: string | null; market: string | null; kind: string; code: string; since: string; until: string; why: string; from_preemption: boolean }[];
  disabled: Record<string, string>;
}

export interface Amounts {
  cost_usd: number;
  on_demand_usd: number;
  lost_s: number;
  lost_usd: number;
}

export interface Savings {
  now: string;
  since: string;
  is_complete: boolean;
  is_current: boolean;
  total: Amounts;
  unfinished: Amounts;
  by_user: (Amounts & { name: string })[];
  by_cloud: (Amounts & { name: string })[];
  by_job: (Amounts & { name: string; job_id: number })[];
  by_day: (Amounts & { day: string })[];
}

export interface ControllerLease {
  id: string;
  endpoint: string;
  started_at: string;
  lease_until: string;
  is_alive: boolean;
  schema_revision: string;
}

export interface FleetNode {
  job_id: number;
  task_index: number;
  generation: number;
  rank: number;
  name: string;
  user: string;
  phase: string;
  attempt_state: string;
  instance_id: string | null;
  ip: string | null;
  connected: boolean;
  cloud: string;
  region: string;
  zone: string;
  instance_type: string;
  market: string;
  price_per_hour: number;
  launched_at: string | null;
  notice_deadline: string | null;
}

export interface NodePage {
  now: string;
  nodes: FleetNode[];
  next: number | null;
}

export interface Me {
  user: string;
  role: string;
  has_users: boolean;
  sees_all: boolean;
  permissions: string[];
  budget_usd: number | null;
  spent_usd: number | null;
}

export interface User {
  name: string;
  role: string;
  created_at: string;
  disabled_at: string | null;
  max_jobs: number | null;
  max_running_jobs: number | null;
  budget_usd: number | null;
  budget_action: string;
  spent_usd: number | null;
}

export interface Token {
  id: string;
  user: string;
  label: string;
  role: string;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export interface NewToken extends Token {
  token: string;
}

export interface AuditEntry {
  id: number;
  at: string;
  user: string;
  token: string;
  address: string;
  action: string;
  target: string;
  outcome: string;
  detail: Record<string, unknown>;
}

export interface Cluster {
  name: string;
  cluster_id: number;
  user: string;
  status: string;
  message: string;
  infra: string;
  resources: string;
  num_nodes: number;
  autostop_s: number | null;
  autostop_down: boolean;
  launched_at: string;
  head_ip: string | null;
  host_job_id: number | null;
}

export interface ClusterList {
  now: string;
  clusters: Cluster[];
}

export interface ClusterJob {
  number: number;
  job_id: number;
  name: string;
  user: string;
  submitted_at: string;
  duration_s: number | null;
  resources: string;
  status: string;
  has_ended: boolean;
  message: string;
}

export interface ClusterQueue {
  now: string;
  cluster: Cluster;
  jobs: ClusterJob[];
}

export interface ServiceReplica {
  service_name: string;
  number: number;
  version: number;
  status: string;
  message: string;
  is_spot: boolean;
  job_id: number | null;
  infra: string;
  resources: string;
  requests: number;
  launched_at: string;
  ready_at: string | null;
  ended_at: string | null;
}

export interface Service {
  name: string;
  service_id: number;
  user: string;
  version: number;
  status: string;
  message: string;
  uptime_s: number | null;
  created_at: string;
  endpoint: string | null;
  has_token: boolean;
  ready_replicas: number;
  target_replicas: number;
  requests: number;
  recent_requests: number;
  waiting_requests: number;
  waiting_since: string | null;
  autoscaling_policy: string;
  load_balancing_policy: string;
  requested_resources: string;
  price_per_hour: number;
  replicas: ServiceReplica[];
}

/** The task of the newest version. `secrets`: the names of those whose values are left out. */
export interface ServiceSpec {
  version: number;
  yaml: string;
  secrets: string[];
}

export interface ServiceList {
  now: string;
  services: Service[];
}

export interface ServiceEvent {
  at: string;
  kind: string;
  version: number | null;
  replica: number | null;
  message: string;
}

/** The tasks of a YAML text, as a submission takes them. */
export interface ParsedTasks {
  name: string | null;
  tasks: Record<string, unknown>[];
  warnings: string[];
}

/** One node over time: a value for each of `at` (epoch seconds), null where there is none. */
export interface NodeMetrics {
  task_index: number;
  generation: number;
  rank: number;
  resolution_s: number;
  at: number[];
  values: Record<string, (number | null)[] | undefined>;
  reported: Record<string, (number | null)[] | undefined>;
}

export interface MetricsOverTime {
  now: string;
  series: NodeMetrics[];
  omitted: number;
}

export interface Schedule {
  name: string;
  user: string;
  cron: string;
  time_zone: string;
  paused: boolean;
  next_at: string | null;
  last_due_at: string | null;
  last_job_id: number | null;
  last_result: string | null;
}

export interface Sweep {
  sweep_id: number;
  name: string;
  user: string;
  size: number;
  counts: Record<string, number>;
  cost_usd: number;
  jobs: { rank: number; job_id: number; status: string; values: Record<string, string>; message: string }[];
}
