//! Faults of the protocol that the tests plant.

/// Protocol faults that the tests plant to prove that the checkers see them.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The coordinator says COMMIT and STABLE before its record is durable.
    StableBeforePersist,
    /// COMMIT with one PREPARED missing.
    CommitOneMissing,
    /// The agent says `Prepared` without reading back (carried out by the driver).
    SkipReadBack,
    /// Messages of older incarnations are accepted.
    AcceptOldIncarnation,
    /// An incarnation opens without quorum and without the launcher's word.
    ForgetFencing,
    /// The agent reuses a slot before a newer version is stable (driver).
    ReuseSlotEarly,
    /// A participant acknowledges before its record is durable.
    AckBeforePersist,
    /// Recovery forgets the COMMIT records of other nodes.
    ForgetForeignCommits,
    /// An opening takes versions whose records are all lost for none.
    ForgetHistory,
    /// An opening takes an older version while a newer one cannot be read.
    DecideBlind,
    /// An opening offers versions that an earlier one has made void.
    OfferVoid,
    /// A forced version goes to no more levels than it was armed at.
    ForcedAsArmed,
    /// A coordinator that was started anew is not heard by who waits for the word of the one before.
    AwaitLostWord,
}
