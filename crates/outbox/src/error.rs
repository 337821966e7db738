//! Why a row did not become a message.

/// Why a row did not become a message. The texts name the table, the column, the row's place in the log and the event's
/// id where it is known; never a payload or another value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// This row can never be published as it is; others can.
    #[error("{what}")]
    Poison {
        /// What is wrong with it, and where it is.
        what: String,
    },
    /// The table does not fit the configuration: no row of this shape can be published.
    #[error("{what}")]
    Shape {
        /// What does not fit.
        what: String,
        /// A sentence that tells how to mend it.
        hint: String,
    },
}
