//! Guaranteed shares: the parts of a limit that classes of callers have for themselves.

use crate::key::KeyPart;
use crate::value::fraction::greatest_divisor;

/// The shares of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// The fact of a request that names its class: account, tier, location, a header or a claim.
    pub by: KeyPart,
    /// The classes by name; the last one is [`Shares::DEFAULT`], of all requests that name no other.
    pub classes: Vec<ShareClass>,
    /// The part of the kept slots of each class that others may use, in millionths.
    pub lend: u32,
}

/// A class of callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareClass {
    /// The value that names it.
    pub name: String,
    /// The part of the limit that no other class takes from it, in millionths.
    pub least: u32,
    /// The part of the limit that it never goes beyond, in millionths.
    pub most: u32,
}

/// The most classes of a limit that the file names.
pub const CLASSES_MAX: usize = 16;

// === impl Shares ===

impl Shares {
    /// The name of the class of all other requests.
    pub const DEFAULT: &'static str = "default";
    /// 100%, as the parts of a limit are counted.
    pub const WHOLE: u32 = 1_000_000;

    /// The class of requests that name no other.
    pub fn default_class(&self) -> u8 {
        self.classes.len().saturating_sub(1) as u8
    }

    /// The place of a class; a request of before a reload may be of one that is gone.
    #[inline]
    pub fn index(&self, class: u8) -> usize {
        class.min(self.default_class()).into()
    }

    /// The class with this name, else the default one.
    pub fn find_class(&self, name: Option<&[u8]>) -> u8 {
        let found = name.and_then(|name| self.classes.iter().position(|one| one.name.as_bytes() == name));
        found.map_or(self.default_class(), |class| class as u8)
    }

    /// The part of the limit that no class has for itself, in millionths.
    pub fn free(&self) -> u32 {
        self.classes.iter().fold(Shares::WHOLE, |free, class| free.saturating_sub(class.least))
    }

    /// The greatest part, in millionths, of which the parts of all classes are multiples.
    pub fn grain(&self) -> u32 {
        let parts = self.classes.iter().flat_map(|class| [class.least, class.most]);
        parts.fold(Shares::WHOLE, |grain, part| greatest_divisor(grain.into(), part.into()) as u32)
    }

    /// The tokens into which a bucket divides a tick, so that the half of each part is a whole number of them.
    pub fn token_scale(&self) -> u32 {
        2 * (Shares::WHOLE / self.grain())
    }
}

// === impl ShareClass ===

impl ShareClass {
    /// The whole units of `number` that the class has for itself.
    pub fn least_of(&self, number: u64) -> u64 {
        (u128::from(number) * u128::from(self.least) / u128::from(Shares::WHOLE)) as u64
    }

    /// The whole units of `number` that the class never goes beyond.
    pub fn most_of(&self, number: u64) -> u64 {
        (u128::from(number) * u128::from(self.most)).div_ceil(u128::from(Shares::WHOLE)) as u64
    }
}
