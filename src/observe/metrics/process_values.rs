//! Values of the process, which continue in the metrics of later gateways.

use super::{Metrics, WatchedValue};

impl Metrics {
    /// The number of reloads with this `result`.
    pub fn watch_reloads(&self, result: &'static str, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let (name, help) = ("sluicegate_reloads", "Reloads of the configuration, by result");
        self.watch_process_value(name, help, vec![("result", result)], read);
    }

    /// The number of changes by a `call` of the admin API with this `result`.
    pub fn watch_admin_changes(
        &self,
        call: &'static str,
        result: &'static str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let (name, help) = ("sluicegate_admin_changes", "Changes by calls of the admin API, by result");
        self.watch_process_value(name, help, vec![("call", call), ("result", result)], read);
    }

    /// The number of the configuration in force, counted from 1.
    pub fn watch_generation(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let help = "Configurations of this process so far";
        self.watch_process_value("sluicegate_config_generation", help, Vec::new(), read);
    }

    /// When the configuration in force took effect, in seconds since 1970.
    pub fn watch_reload_time(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let name = "sluicegate_config_last_reload_success_timestamp_seconds";
        self.watch_process_value(name, "When the configuration in force took effect", Vec::new(), read);
    }

    /// Gateways that requests still use, including the one in force.
    pub fn watch_gateways(&self, read: impl Fn() -> u64 + Send + Sync + 'static) {
        let help = "Configurations that requests still use";
        self.watch_process_value("sluicegate_config_live", help, Vec::new(), read);
    }

    /// Registers a value of the process, whichever gateway is in force. Call it once per value. A value with labels
    /// is a counter, one without is a gauge.
    pub(super) fn watch_process_value(
        &self,
        name: &'static str,
        help: &'static str,
        labels: Vec<(&'static str, &'static str)>,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let is_counter = !labels.is_empty();
        let labels = labels.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
        self.process_values.lock().push(WatchedValue {
            name,
            help,
            is_counter,
            labels,
            read: Box::new(read),
        });
    }
}
