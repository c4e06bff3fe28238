//! The context that the readers of all servers share.

use super::limits::LimitBook;
use super::scope::FindingLedger;
use super::upstreams::UpstreamBook;
use super::variables::VariableTable;

pub(super) struct SiteContext<'d, 'b> {
    pub variables: &'b VariableTable<'d>,
    pub ledger: &'b FindingLedger,
    pub limits: LimitBook<'d, 'b>,
    pub upstreams: UpstreamBook<'d, 'b>,
}
