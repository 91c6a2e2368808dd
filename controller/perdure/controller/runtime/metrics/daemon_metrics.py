"""Every metric of the daemon, with what it means. The guide on metrics lists them; a test compares the two.

Labels never name a job, a user or a machine. Metrics count the jobs of one controller: add those of all controllers.
"""

from __future__ import annotations

from perdure.controller.runtime.metrics.metric_registry import MetricRegistry
from perdure.recovery.market.slot_queue import SLOT_CLOUD

DURATIONS_S = (1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
LAGS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
REQUESTS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10)
SERVICES_S = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
CHECKPOINTS_S = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400)
# An offer has five labels; a large account buys in some dozens of zones.
_MAX_OFFERS = 300
_OFFER = ("cloud", "region", "zone", "instance_type", "market")


class DaemonMetrics:
    """The metrics of one daemon."""

    def __init__(self) -> None:
        self.registry = registry = MetricRegistry()
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram

        self.build_info = gauge("perdure_build_info", "The version that runs; always 1.", "version")
        self.start_time = gauge("perdure_start_time_seconds", "When the daemon started, in epoch seconds.")
        self.lease = gauge("perdure_controller_lease", "1 while the controller holds its lease and may act, else 0.")

        self.tasks = gauge("perdure_tasks", "Tasks of jobs that are not finalized, by status.", "status")
        self.tasks_ended = counter("perdure_tasks_ended", "Tasks that ended.", "status", "reason")
        self.oldest_waiting = gauge(
            "perdure_oldest_waiting_seconds", "How long the task that waits longest has waited for machines."
        )
        self.stuck_tasks = gauge("perdure_stuck_tasks", "Running tasks that make no progress.")

        self.attempts = gauge("perdure_attempts", "Attempts that are not gone.", "state", "cloud", "market")
        self.machines = gauge("perdure_machines", "Machines that exist.", "cloud", "market")
        self.launches = counter("perdure_launches", "Launches, by how they ended.", "cloud", "market", "outcome")
        self.launch_seconds = histogram(
            "perdure_launch_seconds", "From the decision to launch to the cloud's machine.", DURATIONS_S, "cloud"
        )
        self.startup_seconds = histogram(
            "perdure_startup_seconds", "From the decision to launch to the start of run.", DURATIONS_S, "cloud"
        )
        self.refusals = counter(
            "perdure_refusals", "Launches that a cloud refused.", *_OFFER, "kind", max_series=_MAX_OFFERS
        )

        self.notices = counter("perdure_notices", "Preemption notices.", "cloud", "market")
        self.preemptions = counter(
            "perdure_preemptions",
            "Attempts that lost a machine to a preemption.",
            *_OFFER,
            "noticed",
            max_series=_MAX_OFFERS,
        )
        self.recoveries = counter("perdure_recoveries", "Attempts that were given up and replaced.", "cause")
        self.recovery_seconds = histogram(
            "perdure_recovery_seconds", "From the loss of an attempt to the start of run in the next.", DURATIONS_S
        )
        self.notice_to_replacement = histogram(
            "perdure_notice_to_replacement_seconds", "From a notice to the start of run on a replacement.", DURATIONS_S
        )
        self.work_done = counter("perdure_work_done_seconds", "Time that tasks have run, including lost work.")
        self.work_lost = counter("perdure_work_lost_seconds", "Work that had to be done again.", "cause")

        self.checkpoints = counter("perdure_checkpoints", "Reports on checkpoints.", "state")
        self.durable_lag = histogram(
            "perdure_checkpoint_durable_lag_seconds", "From a save to its last byte in the bucket.", CHECKPOINTS_S
        )
        self.checkpoint_age_at_loss = histogram(
            "perdure_checkpoint_age_at_loss_seconds", "Age of the last durable checkpoint at a loss.", CHECKPOINTS_S
        )
        self.oldest_checkpoint = gauge(
            "perdure_oldest_checkpoint_age_seconds",
            "The longest time since a running task's last durable checkpoint, or since its run began.",
        )

        self.cost = counter("perdure_cost_dollars", "Cost of machines since the start.", "cloud", "market")
        self.on_demand_cost = counter(
            "perdure_cost_on_demand_dollars", "What the same machines cost on demand.", "cloud", "market"
        )
        self.spend = gauge("perdure_spend_dollars_per_hour", "Price of the machines that exist.", "cloud", "market")

        self.services = gauge("perdure_services", "Services that are not down.", "status")
        self.service_replicas = gauge("perdure_service_replicas", "Replicas that are not over.", "service", "status")
        self.service_replicas_ended = counter(
            "perdure_service_replicas_ended", "Replicas that are over, by how they ended.", "service", "status"
        )
        self.service_requests = counter(
            "perdure_service_requests", "Answers of endpoints, by the class of their status.", "service", "code"
        )
        self.service_in_flight = gauge(
            "perdure_service_in_flight_requests", "Requests that are answered or held.", "service"
        )
        self.service_queue = gauge("perdure_service_queued_requests", "Requests that wait for a replica.", "service")
        self.service_first_byte = histogram(
            "perdure_service_first_byte_seconds", "From a request to its answer's first byte.", SERVICES_S, "service"
        )
        self.service_seconds = histogram(
            "perdure_service_request_seconds", "Duration of requests with their answers.", SERVICES_S, "service"
        )
        self.service_spend = gauge(
            "perdure_service_spend_dollars_per_hour", "Price of the machines of a service.", "service", "market"
        )

        self.queue_depth = gauge("perdure_queue_depth", "Events that wait for a decision.")
        self.queue_lag = gauge("perdure_queue_lag_seconds", "How long the next event has waited for a decision.")
        self.timer_lag = gauge("perdure_oldest_due_timer_seconds", "How long the next timer has been due.")
        self.decisions = counter("perdure_decisions", "Decisions that were recorded.")
        self.record_seconds = histogram(
            "perdure_record_seconds", "Time to record decisions, a transaction with all that is pending.", LAGS_S
        )
        self.set_aside = gauge("perdure_events_set_aside", "Events that could not be recorded and were set aside.")
        self.launch_queue = gauge("perdure_launch_queue_depth", "Launches that wait for their turn.", "cloud")
        self.cloud_calls = counter("perdure_cloud_calls", "Calls of a cloud.", "cloud", "call", "outcome")
        self.cloud_call_seconds = histogram(
            "perdure_cloud_call_seconds", "Duration of calls of a cloud.", REQUESTS_S, "cloud", "call"
        )

        self.event_loop_lag = histogram(
            "perdure_event_loop_lag_seconds", "Delay of timers on the event loop, which serves nodes and users.", LAGS_S
        )
        self.database_seconds = histogram(
            "perdure_database_seconds", "Duration of statements and commits, with waits for a lock.", LAGS_S, "what"
        )
        self.database_errors = counter("perdure_database_errors", "Errors of the database.")
        self.http_requests = counter("perdure_http_requests", "API requests.", "route", "method", "status")
        self.http_seconds = histogram(
            "perdure_http_request_seconds", "Time to the start of the response.", REQUESTS_S, "route"
        )

        self.notifications = counter("perdure_notifications", "Events sent to a channel.", "channel", "outcome")
        self.notifications_due = gauge("perdure_notifications_due", "Events that could be sent to their channel now.")

        self.nodes = gauge("perdure_nodes_connected", "Nodes that are connected to this controller.")
        self.rejected_frames = gauge("perdure_rejected_frames", "Invalid frames of nodes since the start.")

    def on_cloud_call(self, cloud: str, kind: str, outcome: str, seconds: float) -> None:
        """A call of a cloud ended. Grants of slots of clusters call none."""
        if cloud == SLOT_CLOUD:
            return
        self.cloud_calls.inc(cloud, kind, outcome)
        self.cloud_call_seconds.observe(seconds, cloud, kind)
