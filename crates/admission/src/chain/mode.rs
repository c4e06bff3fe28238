//! The two modes of judging a chain.

use sluicegate_store::ScriptOp;

mod sealed {
    pub trait Sealed {}
}

/// The mode of a judgement; everything that depends on it is decided at compile time.
pub trait ChainMode: sealed::Sealed {
    const CHARGES: bool;
    const STORE_OP: ScriptOp;
}

/// Judges a request and charges it.
pub struct Charge;

/// Judges an imaginary request for `explain` and changes nothing.
pub struct Look;

impl sealed::Sealed for Charge {}
impl sealed::Sealed for Look {}

impl ChainMode for Charge {
    const CHARGES: bool = true;
    const STORE_OP: ScriptOp = ScriptOp::Take;
}

impl ChainMode for Look {
    const CHARGES: bool = false;
    const STORE_OP: ScriptOp = ScriptOp::Peek;
}
