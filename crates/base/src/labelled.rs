//! Enums in which each variant has a label.

/// Defines enums without fields, for each the lists of its variants, of their labels and of both together, and a method
/// that returns the label of a variant.
#[macro_export]
macro_rules! labelled_enum {
    ($(
        $(#[$meta:meta])*
        $vis:vis enum $name:ident: $method:ident -> $label:ty {
            $($(#[$doc:meta])* $variant:ident = $value:expr,)*
        }
    )+) => {$(
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// The variants, in the order of their definition.
            pub const ALL: [$name; [$(stringify!($variant)),*].len()] = [$($name::$variant),*];
            /// The labels of the variants, in the same order.
            pub const LABELS: [$label; $name::ALL.len()] = [$($value),*];
            /// The labels with their variants, in the same order.
            pub const WORDS: [($label, $name); $name::ALL.len()] = [$(($value, $name::$variant)),*];

            /// The label of the variant.
            pub fn $method(self) -> $label {
                match self { $($name::$variant => $value,)* }
            }
        }
    )+};
}

pub use labelled_enum;
