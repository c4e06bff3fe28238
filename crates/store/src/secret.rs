//! A secret that all gateways of a store share, so that their hashes of keys agree.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand;

use super::script::operator::OPERATOR_GROUP;
use super::{LuaScript, PackedCall, Store};

/// The pause between two looks, so that a store that lost its memory gets the secret back before it is asked for one.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The pause before the next try while the store does not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Keeps the secret of [`Store::shared_secret`] up to date, and calls `on_change` with each one that it learns. Never
/// returns. Run it once, on the runtime of a single thread that is not a worker's.
pub async fn share_secret(store: Arc<Store>, on_change: impl Fn([u8; 16])) {
    let script = LuaScript::new(include_str!("script/secret.lua"));
    let call = store.script_caller(OPERATOR_GROUP, script);
    let mut offered = [0; 16];
    while rand::fill(&mut offered).is_err() {
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    let key = format!("{}:{{operator}}:secret", store.prefix()).into_bytes();
    loop {
        let known = store.shared_secret();
        let body = known.unwrap_or(offered).to_vec();
        let packed = PackedCall { keys: [key.clone()].into_iter().collect(), body };
        let told: Option<[u8; 16]> = call(&packed).await.ok().and_then(|bytes| bytes.try_into().ok());
        if let Some(secret) = told
            && known != Some(secret)
        {
            *store.secret.lock() = Some(secret);
            on_change(secret);
        }
        tokio::time::sleep(if told.is_some() { CHECK_INTERVAL } else { RETRY_INTERVAL }).await;
    }
}
