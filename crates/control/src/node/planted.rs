//! Faults of a node that the tests plant to prove that the simulator's judge sees them.

/// A fault.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A slot is used again before a newer version is stable.
    ReuseSlotEarly,
    /// A version counts as captured here when one of the local ranks has.
    CountCaptureForAll,
    /// The slots of a version that came to nothing stay taken.
    KeepVoidSlot,
    /// That an older version is stable is no news once a newer one is.
    IgnoreOlderStable,
    /// Copies go to who held the partner's slot before.
    OldPartnerEpoch,
    /// Copies go to the next node, whatever fails together with it.
    PartnerAnywhere,
    /// A second living process may be a rank.
    TakeSecondProcess,
    /// Captures after the restored version stay, though they are void.
    KeepVoidCaptures,
    /// A version replaces older ones when it is captured.
    CollectEarly,
    /// A node without ranks cannot supply its nothing.
    SupplyNoNothing,
    /// A level with groups is prepared when this node's own container is written.
    PrepareWithoutParity,
    /// A version counts as lost where two members of a group are, whatever its level tolerates.
    TolerateOneLost,
    /// One factor of a parity is another; who adds up heeds it.
    WrongFactor,
    /// An injection is said to have been carried out, and is not.
    InjectNothing,
    /// A copy at `shared` that could not be made of its container counts as made.
    TrustTransfer,
    /// A write of an ended incarnation counts for the version of that number in the open one.
    TakeOldFlush,
    /// A decision is recorded with the parts that happen to be known.
    RecordIncomplete,
    /// A decision that could not be recorded counts when its version is restored.
    CountUnrecorded,
    /// What a lost node may have decided does not count.
    ForgetMaybeCommitted,
    /// The end waits for nothing.
    EndAtOnce,
    /// Who waits for a version hears that it is safe when it is stable at any level.
    AnyLevelIsSafe,
    /// A version that a node had no room to arm cannot be forced any more.
    EndUnarmed,
    /// Who finds an incarnation open says that it was opened just now.
    TellOpened,
    /// What lies in memory is written again as it is, also if something has overwritten it.
    TrustMemory,
    /// A copy in memory that was found damaged is tried again.
    TryMemoryAgain,
    /// A rank that leaves the job takes with it what it has captured.
    LeaveWithCapture,
    /// Who waits for a version does not hear that it has ended.
    KeepWaiting,
    /// Who is asked to open what it finds open says nothing of it.
    AwaitWord,
    /// The coordinator's clock is said to be known exactly.
    SureOfClock,
}
