//! Setters of options.

/// Defines setters of options inside an `impl` block: one for each field, with the field's name
/// and type. It consumes the options and returns them changed. The setter of an `Option` takes the
/// value for `Some`; to take it back, assign `None` to the field.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($field:ident: Option<$type:ty> $(, $($rest:tt)*)?) => {
        $crate::setters! { @ $field: $type = Some($field) }
        $crate::setters! { $($($rest)*)? }
    };
    ($field:ident: $type:ty $(, $($rest:tt)*)?) => {
        $crate::setters! { @ $field: $type = $field }
        $crate::setters! { $($($rest)*)? }
    };
    (@ $field:ident: $type:ty = $value:expr) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    };
    () => {};
}
