//! Files that the configuration names beside itself: read again when they change, while everything runs on.

use std::time::Duration;

use crate::config::{Account, FileContent, NamedFile};

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Follows the files of `account`, until the task is dropped.
pub async fn follow(account: Account) {
    if account.tier.file.is_none() && account.jwt.as_ref().is_none_or(|jwt| jwt.keys.is_none()) {
        return;
    }
    loop {
        tokio::time::sleep(LOOK).await;
        let account = account.clone();
        // Reading blocks, and this thread also answers the admin address.
        let _ = tokio::task::spawn_blocking(move || look(&account)).await;
    }
}

fn look(account: &Account) {
    if let Some(file) = &account.tier.file {
        look_at(file);
    }
    if let Some(file) = account.jwt.as_ref().and_then(|jwt| jwt.keys.as_ref()) {
        look_at(file);
    }
}

fn look_at<T: FileContent>(file: &NamedFile<T>) {
    let path = file.path.display();
    match file.refresh() {
        Ok(true) => tracing::info!("the file {path} was read again"),
        Ok(false) => {}
        Err(reason) => tracing::warn!("the file {path} {reason}; what it said before stays"),
    }
}
