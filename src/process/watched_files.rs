//! Watches the files that the configuration names, such as tiers and keys, and reads them again when they change.

use std::time::Duration;

use sluicegate_base::file::{FileContent, NamedFile};
use sluicegate_model::AccountConfig;

/// Interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Watches the files of `account` until the task is dropped.
pub async fn watch_files(account: AccountConfig) {
    if account.tier.file.is_none() && account.jwt.as_ref().is_none_or(|jwt| jwt.keys.is_none()) {
        return;
    }
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let account = account.clone();
        // Reading blocks, and this thread also serves the admin listener.
        let _ = tokio::task::spawn_blocking(move || refresh_files(&account)).await;
    }
}

fn refresh_files(account: &AccountConfig) {
    if let Some(file) = &account.tier.file {
        refresh_file(file);
    }
    if let Some(file) = account.jwt.as_ref().and_then(|jwt| jwt.keys.as_ref()) {
        refresh_file(file);
    }
}

fn refresh_file<T: FileContent>(file: &NamedFile<T>) {
    let path = file.path.display();
    match file.reload_if_changed() {
        Ok(true) => tracing::info!("the file {path} was read again"),
        Ok(false) => {}
        Err(reason) => tracing::warn!("the file {path} {reason}; its previous content stays in force"),
    }
}
