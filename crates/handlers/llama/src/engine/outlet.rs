//! Consumer of what the engine makes for a request.

use nsbridge_handler::{EmbeddingPiece, Emitter, Refused, Stop, TextPiece};

/// Consumer of a request's pieces, and the source of its stop.
pub(crate) trait Outlet: Send {
    /// Checks for a stop.
    ///
    /// # Errors
    ///
    /// Returns the reason to stop if the request must end.
    fn check(&self) -> Result<(), Stop>;

    /// Sends a piece if there is room for it.
    ///
    /// # Errors
    ///
    /// Returns the reason if the piece was not taken.
    fn offer(&self, piece: &TextPiece) -> Result<(), Refused>;

    /// Sets a callback that runs whenever there may be room again or the request must stop.
    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>);
}

impl Outlet for Emitter<TextPiece> {
    fn check(&self) -> Result<(), Stop> {
        Self::check(self)
    }

    fn offer(&self, piece: &TextPiece) -> Result<(), Refused> {
        self.try_emit(piece)
    }

    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        Self::on_change(self, wake);
    }
}

/// The engine makes no pieces for an embedding: its vector leaves through a channel of its own.
impl Outlet for Emitter<EmbeddingPiece> {
    fn check(&self) -> Result<(), Stop> {
        Self::check(self)
    }

    fn offer(&self, _: &TextPiece) -> Result<(), Refused> {
        Ok(())
    }

    fn on_change(&self, wake: Box<dyn Fn() + Send + Sync>) {
        Self::on_change(self, wake);
    }
}
