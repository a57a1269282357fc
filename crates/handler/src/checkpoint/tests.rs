//! Headers, good and hostile.
