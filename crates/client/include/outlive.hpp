/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Outlive for C++17: a thin, header-only layer over outlive.h.
 *
 *     outlive::Job job;                                  // joins, throws outlive::error
 *     std::vector<double> field(n);
 *     job.protect("field", field);
 *     std::uint64_t step = job.restore().value_or(0);
 *     for (; step < steps; ++step) {
 *         job.checkpoint(step);
 *         compute(field);
 *     }
 *     job.close();
 *
 * Every member function that may fail exists twice: with a trailing
 * std::error_code & it reports there and never throws, without it throws
 * outlive::error. checkpoint() is the exception: a failed save must not stop the
 * program, so without an error code it returns outcome::failed. With
 * -fno-exceptions only the forms with an error code exist.
 *
 * A protected container must not reallocate between protect() and the last
 * checkpoint or restore: protect it again under the same name after it did.
 */
#ifndef OUTLIVE_HPP
#define OUTLIVE_HPP

#include <outlive.h>

#include <array>
#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace outlive {

/** The category of Outlive's codes; values are those of OUTLIVE_E_*. */
class category_t final : public std::error_category {
public:
    const char *name() const noexcept override { return "outlive"; }
    std::string message(int code) const override { return outlive_strerror(-code); }
};

inline const std::error_category &category() noexcept {
    static const category_t instance;
    return instance;
}

/** The error code of a return value of outlive.h; empty if it is none. */
inline std::error_code to_error_code(int returned) noexcept {
    return returned < 0 ? std::error_code(-returned, category()) : std::error_code();
}

#if defined(__cpp_exceptions)
/** What throws; what() is the line of outlive_last_error(). */
class error : public std::system_error {
public:
    error(std::error_code code, const std::string &line) : std::system_error(code, line) {}
};
#endif

/** What a version is to survive; each includes those before it. */
enum class survives : int {
    process = OUTLIVE_SURVIVES_PROCESS,
    node_crash = OUTLIVE_SURVIVES_NODE_CRASH,
    node_loss = OUTLIVE_SURVIVES_NODE_LOSS,
    domain = OUTLIVE_SURVIVES_DOMAIN,
    all_nodes = OUTLIVE_SURVIVES_ALL_NODES,
};

/** What a checkpoint did. */
enum class outcome { skipped, taken, failed };

namespace detail {
template <class T> inline constexpr bool plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

/** True for vectors, arrays, spans and the like of trivially copyable elements. */
template <class C, class = void> struct contiguous : std::false_type {};
template <class C>
struct contiguous<C, std::void_t<decltype(std::declval<C &>().data()), decltype(std::declval<C &>().size())>>
    : std::bool_constant<plain<std::remove_pointer_t<decltype(std::declval<C &>().data())>> &&
                         !std::is_const_v<std::remove_pointer_t<decltype(std::declval<C &>().data())>>> {};

/** True for what shows elements by data(): a view is no object whose own bytes are meant. */
template <class C, class = void> struct has_data : std::false_type {};
template <class C> struct has_data<C, std::void_t<decltype(std::declval<C &>().data())>> : std::true_type {};

/** What numbers a type is or consists of, as outlive_describe() has it; 0: none of those. */
template <class T> inline constexpr int element = 0;
template <> inline constexpr int element<float> = OUTLIVE_FLOAT32;
template <> inline constexpr int element<double> = OUTLIVE_FLOAT64;
template <class T> inline constexpr int element<std::complex<T>> = element<T>;
template <class T, std::size_t N> inline constexpr int element<T[N]> = element<T>;
template <class T, std::size_t N> inline constexpr int element<std::array<T, N>> = element<T>;
} // namespace detail

/** A rank's handle on its job. Closes it when it goes, unless an exception is on
 * its way: then the rank leaves as one that failed, and is restored. Movable. */
class Job {
public:
    /** Joins; check `code` before any other use. */
    explicit Job(std::error_code &code) noexcept : Job(nullptr, code) {}
    Job(const outlive_options *options, std::error_code &code) noexcept {
        code = to_error_code(outlive_open(options, &job_));
    }

    Job(Job &&other) noexcept
        : job_(std::exchange(other.job_, nullptr)), exceptions_(other.exceptions_) {}
    Job &operator=(Job &&other) noexcept {
        if (this != &other) {
            outlive_close(&job_);
            job_ = std::exchange(other.job_, nullptr);
            exceptions_ = other.exceptions_;
        }
        return *this;
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    ~Job() {
        if (std::uncaught_exceptions() <= exceptions_) outlive_close(&job_);
    }

    /** The handle for calls of outlive.h; still owned by this object. */
    outlive_job *get() const noexcept { return job_; }

    void protect(const char *name, void *data, std::size_t bytes, std::error_code &code) noexcept {
        code = to_error_code(outlive_protect(job_, name, data, bytes));
    }
    /** A vector, array or span of trivially copyable elements. */
    template <class C, std::enable_if_t<detail::contiguous<C>::value, int> = 0>
    void protect(const char *name, C &&container, std::error_code &code) noexcept {
        using value = std::remove_pointer_t<decltype(container.data())>;
        protect(name, static_cast<void *>(container.data()), container.size() * sizeof(value), code);
        numbers<value>(name, code);
    }
    /** One object of a trivially copyable type. A view of elements that cannot be filled
     * (a span of const, a string_view) is refused: its own bytes are an address. */
    template <class T, std::enable_if_t<detail::plain<T> && !detail::has_data<T>::value, int> = 0>
    void protect(const char *name, T &object, std::error_code &code) noexcept {
        protect(name, static_cast<void *>(std::addressof(object)), sizeof(T), code);
        numbers<T>(name, code);
    }
    /** Says what numbers a region has that was protected by its address: OUTLIVE_FLOAT64, ... Of
     * containers and objects of float, double and complex it is known. */
    void describe(const char *name, int element, std::error_code &code) noexcept {
        code = to_error_code(outlive_describe(job_, name, element));
    }
    void unprotect(const char *name, std::error_code &code) noexcept {
        code = to_error_code(outlive_unprotect(job_, name));
    }

    /** The version restored; nothing at the first start. */
    std::optional<std::uint64_t> restore(std::error_code &code) noexcept {
        std::uint64_t version = 0;
        const int     told = outlive_restore(job_, &version);
        code = to_error_code(told);
        return told == OUTLIVE_RESTORED ? std::optional<std::uint64_t>(version) : std::nullopt;
    }
    /** Bytes of a region in the version to restore; nothing at the first start. */
    std::optional<std::size_t> query(const char *name, std::error_code &code) noexcept {
        std::size_t bytes = 0;
        const int   told = outlive_query(job_, name, &bytes);
        code = to_error_code(told);
        return told == OUTLIVE_OK ? std::optional<std::size_t>(bytes) : std::nullopt;
    }

    outcome checkpoint(std::uint64_t version) noexcept { return told(outlive_checkpoint(job_, version)); }
    outcome checkpoint(std::uint64_t version, std::error_code &code) noexcept {
        const int returned = outlive_checkpoint(job_, version);
        code = to_error_code(returned);
        return told(returned);
    }
    outcome checkpoint_now(std::uint64_t version) noexcept { return told(outlive_checkpoint_now(job_, version)); }
    outcome checkpoint_now(std::uint64_t version, std::error_code &code) noexcept {
        const int returned = outlive_checkpoint_now(job_, version);
        code = to_error_code(returned);
        return told(returned);
    }
    bool wanted(std::uint64_t version) noexcept { return outlive_wanted(job_, version) == 1; }

    /** True if the version is committed and stable at a level that survives `what`; false if
     * nothing is saved because the program runs unprotected. */
    bool wait(std::uint64_t version, survives what, std::chrono::milliseconds bound, std::error_code &code) noexcept {
        const auto ms = bound.count() < 0 ? 0 : bound.count() > 0xfffffffell ? 0xfffffffell : bound.count();
        const int  told = outlive_wait(job_, version, static_cast<int>(what), static_cast<std::uint32_t>(ms));
        code = to_error_code(told);
        return told == OUTLIVE_OK;
    }

    /** A path for a file of `version`; empty on error. */
    std::string route(std::uint64_t version, const char *name, std::error_code &code) {
        char path[4097];
        code = to_error_code(outlive_route(job_, version, name, path, sizeof path));
        return code ? std::string() : std::string(path);
    }

    outlive_status_t status() const noexcept {
        outlive_status_t status{};
        status.size = sizeof status;
        outlive_status(job_, &status);
        return status;
    }
    /** The levels of the job, the nearest copies first; none if it is not protected. */
    std::vector<outlive_level_t> levels() const {
        std::vector<outlive_level_t> found;
        outlive_level_t              level{};
        level.size = sizeof level;
        while (outlive_level(job_, static_cast<std::uint32_t>(found.size()), &level) == OUTLIVE_OK)
            found.push_back(level);
        return found;
    }
    std::string last_error() const {
        std::string line(outlive_last_error(job_, nullptr, 0), '\0');
        outlive_last_error(job_, line.data(), line.size() + 1);
        return line;
    }
    void close(std::error_code &code) noexcept { code = to_error_code(outlive_close(&job_)); }

#if defined(__cpp_exceptions)
    Job() : Job(static_cast<const outlive_options *>(nullptr)) {}
    explicit Job(const outlive_options *options) {
        std::error_code code = to_error_code(outlive_open(options, &job_));
        if (code) throw error(code, last_error());
    }
    void protect(const char *name, void *data, std::size_t bytes) {
        std::error_code code;
        protect(name, data, bytes, code);
        check(code);
    }
    template <class T> void protect(const char *name, T &&object) {
        std::error_code code;
        protect(name, std::forward<T>(object), code);
        check(code);
    }
    void describe(const char *name, int element) {
        std::error_code code;
        describe(name, element, code);
        check(code);
    }
    void unprotect(const char *name) {
        std::error_code code;
        unprotect(name, code);
        check(code);
    }
    std::optional<std::uint64_t> restore() {
        std::error_code code;
        auto            version = restore(code);
        check(code);
        return version;
    }
    std::optional<std::size_t> query(const char *name) {
        std::error_code code;
        auto            bytes = query(name, code);
        check(code);
        return bytes;
    }
    bool wait(std::uint64_t version, survives what = survives::process,
              std::chrono::milliseconds bound = std::chrono::milliseconds(0)) {
        std::error_code code;
        const bool      committed = wait(version, what, bound, code);
        check(code);
        return committed;
    }
    std::string route(std::uint64_t version, const char *name) {
        std::error_code code;
        std::string     path = route(version, name, code);
        check(code);
        return path;
    }
    void close() {
        std::error_code code;
        close(code);
        check(code);
    }
#endif

private:
    template <class T> void numbers(const char *name, std::error_code &code) noexcept {
        constexpr int element = detail::element<T>;
        if constexpr (element != 0) {
            if (!code) describe(name, element, code);
        }
    }
    static outcome told(int returned) noexcept {
        return returned == OUTLIVE_TAKEN ? outcome::taken : returned < 0 ? outcome::failed : outcome::skipped;
    }
#if defined(__cpp_exceptions)
    void check(std::error_code code) const {
        if (code) throw error(code, last_error());
    }
#endif

    outlive_job *job_ = nullptr;
    int          exceptions_ = std::uncaught_exceptions();
};

} // namespace outlive

#endif /* OUTLIVE_HPP */
