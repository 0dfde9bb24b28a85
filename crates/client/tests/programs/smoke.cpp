// As smoke.c, in C++17.
#include <outlive.hpp>

#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            return 1;                                                       \
        }                                                                   \
    } while (0)

namespace {
struct Span {
    int        *begin;
    std::size_t count;
    int        *data() const { return begin; }
    std::size_t size() const { return count; }
};
struct Scalar {
    double a;
    int    b;
};

template <class T, class = void> struct can_protect : std::false_type {};
template <class T>
struct can_protect<T, std::void_t<decltype(std::declval<outlive::Job &>().protect(
                          "", std::declval<T>(), std::declval<std::error_code &>()))>> : std::true_type {};
static_assert(can_protect<std::vector<double> &>::value && can_protect<Span>::value);
static_assert(can_protect<Scalar &>::value && can_protect<double (&)[3]>::value);
static_assert(!can_protect<double *&>::value && !can_protect<const std::vector<double> &>::value);
static_assert(!can_protect<std::string_view &>::value, "the bytes of a view are an address");

namespace numbers_of {
using outlive::detail::element;
static_assert(element<float> == OUTLIVE_FLOAT32 && element<std::complex<double>> == OUTLIVE_FLOAT64);
static_assert(element<double[2][3]> == OUTLIVE_FLOAT64 && element<std::array<float, 4>> == OUTLIVE_FLOAT32);
static_assert(element<int> == 0 && element<long double> == 0 && element<Scalar> == 0);
} // namespace numbers_of

int run(const char *mode) {
    const bool          second = std::strcmp(mode, "second") == 0;
    outlive::Job        job;
    std::vector<double> field(20000);
    std::array<int, 5>  numbers{};
    Scalar              scalar{};
    job.protect("field", field);
    job.protect("span", Span{numbers.data(), numbers.size()});
    job.protect("scalar", scalar);
    job.protect("gone", field.data(), 8);
    job.describe("gone", OUTLIVE_FLOAT64);
    job.unprotect("gone");
    CHECK(job.query("field").value_or(0) == (second ? 160000u : 0u));
    std::uint64_t step = job.restore().value_or(0);
    CHECK(step == (second ? 3u : 0u));
    if (second) {
        CHECK(field[7] == 21 && numbers[4] == 3 && scalar.b == 3);
    }
    for (; step < 6; ++step) {
        for (std::size_t i = 0; i < field.size(); ++i) field[i] = static_cast<double>(i * step);
        numbers.fill(static_cast<int>(step));
        scalar = {0.5, static_cast<int>(step)};
        if (job.checkpoint(step) == outlive::outcome::taken) {
            CHECK(job.wait(step) && job.wait(step, outlive::survives::process));
            CHECK(job.levels().size() == 2 && job.levels()[0].version == step);
        }
    }
    CHECK(std::strcmp(mode, "alone") != 0 || job.levels().empty());
    CHECK(job.checkpoint(2) == outlive::outcome::failed);
    std::error_code code;
    CHECK(job.checkpoint(2, code) == outlive::outcome::failed);
    CHECK(code.value() == OUTLIVE_E_VERSION_ORDER && code.message() == "version out of order");
    try {
        job.protect("", field);
        return 1;
    } catch (const outlive::error &error) {
        CHECK(error.code().value() == OUTLIVE_E_INVALID_ARGUMENT);
        CHECK(std::strstr(error.what(), "OL-100") != nullptr);
    }
    outlive::Job moved = std::move(job);
    CHECK(job.get() == nullptr && moved.status().regions == 3);
    CHECK(moved.status().taken == (std::strcmp(mode, "first") == 0 ? 1u : 0u));
    moved.close();
    return 0;
}
} // namespace

int main(int argc, char **argv) { return run(argc > 1 ? argv[1] : "alone"); }
