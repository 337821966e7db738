//! What the relay asks of an offset store.

use std::future::Future;

use crate::{Failure, Position};

/// Keeps the offset: the stored position from which a restart goes on.
pub trait OffsetStore: Send + 'static {
    /// A place in the source's log.
    type Position: Position;

    /// Reads the offset. `None` only where nothing was ever stored; what cannot be read or is not ours is an error,
    /// never `None`.
    fn load(&mut self) -> impl Future<Output = Result<Option<Self::Position>, Failure>> + Send;

    /// Stores `position` durably before it returns. Refuses to move backward, naming both positions (law 3). When it
    /// fails the old offset stands.
    fn store(&mut self, position: &Self::Position) -> impl Future<Output = Result<(), Failure>> + Send;
}
