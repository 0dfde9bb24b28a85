/* What programs do with the kernel; prints the same whether its threads are decoupled or not. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAY(what, value) (printf("%s: %ld\n", what, (long)(value)), fflush(stdout))
#define ERRNO(what, call) (errno = 0, SAY(what, (call) == -1 ? errno : 0))

static volatile sig_atomic_t hits, last;
static void on(int signal)
{
    hits++;
    last = signal;
    /* A handler that makes calls. */
    char byte;
    int ends[2];
    if (pipe(ends) == 0) {
        if (write(ends[1], "x", 1) != 1 || read(ends[0], &byte, 1) != 1)
            hits += 1000;
        close(ends[0]);
        close(ends[1]);
    }
}

static void catch(int signal, int flags, bool all)
{
    struct sigaction action = {.sa_handler = on, .sa_flags = flags};
    if (all)
        sigfillset(&action.sa_mask); /* SIGSYS among them */
    sigaction(signal, &action, NULL);
}

static void wait_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0)
        ;
}

/* One that disturbs a blocking call of the main thread, once or until it has ended, then feeds its
 * pipe. */
struct disturbance {
    pthread_t whom;
    int signal, fd;
};
static volatile sig_atomic_t ended = 1;
static void *disturb(void *given)
{
    struct disturbance *d = given;
    do {
        wait_ms(10);
        pthread_kill(d->whom, d->signal);
    } while (!ended);
    wait_ms(10);
    if (d->fd >= 0 && write(d->fd, "fed", 3) != 3)
        hits += 1000;
    return NULL;
}

static void files(void)
{
    char name[] = "/tmp/decoupled-XXXXXX", text[64] = {0};
    int fd = mkstemp(name);
    struct iovec parts[2] = {{"hello ", 6}, {"files\n", 6}};
    SAY("writev", writev(fd, parts, 2));
    SAY("pread", pread(fd, text, sizeof text, 6));
    printf("%s", text);
    struct stat state;
    SAY("fstat", fstat(fd, &state) ? -1 : state.st_size);
    SAY("truncate", ftruncate(fd, 100000));
    SAY("seek", lseek(fd, 0, SEEK_END));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
    SAY("lock", fcntl(fd, F_SETLK, &lock));
    char *map = mmap(NULL, 100000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memcpy(map + 50000, "mapped", 6);
    SAY("mapped", pread(fd, text, 6, 50000) == 6 && memcmp(text, "mapped", 6) == 0);
    munmap(map, 100000);
    SAY("umask", umask(027));
    SAY("umask again", umask(022));
    SAY("chdir", chdir("/tmp"));
    SAY("unlink", unlink(name + 5));
    SAY("close", close(fd));
    ERRNO("close again", close(fd));
    ERRNO("no file", open("/no/such", O_RDONLY));
    ERRNO("bad address", (long)syscall(SYS_write, 1, (void *)8, 4L));
    ERRNO("bad path", (long)syscall(SYS_openat, AT_FDCWD, (void *)8, 0L, 0L));
    ERRNO("bad set", (long)syscall(SYS_rt_sigprocmask, SIG_BLOCK, (void *)8, NULL, 8L));
    ERRNO("bad old set", (long)syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, (void *)8, 8L));
    ERRNO("bad size", (long)syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, NULL, 4L));
    ERRNO("bad action", (long)syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8L));
    ERRNO("bad pair", (long)syscall(SYS_pselect6, 0, NULL, NULL, NULL, NULL, (void *)8));
    ERRNO("no such call", (long)syscall(4000));
    ERRNO("negative call", (long)syscall(-5));
}

static void memory(void)
{
    size_t page = 4096;
    char *at = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 7, 8 * page);
    SAY("mprotect", mprotect(at, page, PROT_NONE));
    SAY("munmap", munmap(at + 4 * page, page));
    char *more = mremap(at + page, 2 * page, 64 * page, MREMAP_MAYMOVE);
    SAY("mremap", more[0] + more[2 * page] + more[2 * page - 1]);
    SAY("madvise", madvise(more, page, MADV_DONTNEED) + more[0]);
    char *old = sbrk(0);
    SAY("sbrk", (char *)sbrk(1 << 20) == old);
    memset(old, 3, 1 << 20);
    SAY("heap", old[(1 << 20) - 1]);
    char *big = malloc(64 << 20);
    for (size_t n = 0; n < 64 << 20; n += page)
        big[n] = (char)n;
    free(big);
}

static jmp_buf out;
static void leave(int signal)
{
    (void)signal;
    ended = 1;
    siglongjmp(out, 5);
}

static void queues(void)
{
    sigset_t set, old;
    catch(SIGUSR1, 0, true);
    raise(SIGUSR1);
    SAY("raised", hits);
    kill(getpid(), SIGUSR1);
    SAY("killed", hits);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, &old);
    raise(SIGUSR1);
    sigpending(&old);
    SAY("blocked", hits * 10 + sigismember(&old, SIGUSR1));
    struct timespec none = {0, 0};
    SAY("sigtimedwait", sigtimedwait(&set, NULL, &none));
    ERRNO("none left", sigtimedwait(&set, NULL, &none));
    union sigval value = {.sival_int = 77};
    siginfo_t info;
    sigqueue(getpid(), SIGUSR2, value);
    SAY("sigwaitinfo", sigwaitinfo(&set, &info));
    SAY("its value", info.si_value.sival_int + (info.si_pid == getpid()));
    raise(SIGUSR1);
    sigfillset(&old);
    sigdelset(&old, SIGUSR1);
    ERRNO("sigsuspend", sigsuspend(&old));
    SAY("in it", hits);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void interruptions(void)
{
    int ends[2];
    char text[8];
    /* Blocking calls that are interrupted, with and without SA_RESTART; ignored signals do not. */
    if (pipe(ends) != 0)
        exit(1);
    pthread_t thread;
    struct disturbance d = {pthread_self(), SIGUSR1, ends[1]};
    ended = 0;
    pthread_create(&thread, NULL, disturb, &d);
    ERRNO("interrupted", read(ends[0], text, sizeof text));
    ended = 1;
    pthread_join(thread, NULL);
    SAY("then", read(ends[0], text, sizeof text));
    catch(SIGUSR1, SA_RESTART, false);
    pthread_create(&thread, NULL, disturb, &d);
    SAY("restarted", read(ends[0], text, sizeof text));
    pthread_join(thread, NULL);
    d.signal = SIGCHLD;
    pthread_create(&thread, NULL, disturb, &d);
    SAY("ignored", read(ends[0], text, sizeof text));
    pthread_join(thread, NULL);
    d.signal = SIGUSR1;
    ended = 0;
    pthread_create(&thread, NULL, disturb, &d);
    struct pollfd wanted = {ends[0], POLLIN, 0};
    ERRNO("poll is never restarted", poll(&wanted, 1, -1));
    ended = 1;
    pthread_join(thread, NULL);
    SAY("read", read(ends[0], text, sizeof text));
    signal(SIGUSR1, leave);
    ended = 0;
    pthread_create(&thread, NULL, disturb, &d);
    if (sigsetjmp(out, 1) == 0)
        SAY("not reached", read(ends[0], text, sizeof text));
    signal(SIGUSR1, SIG_IGN);
    SAY("left by longjmp", 1);
    pthread_join(thread, NULL);
    SAY("and read", read(ends[0], text, sizeof text));
    SAY("signals", hits < 1000);
    signal(SIGPIPE, on);
    close(ends[0]);
    ERRNO("broken pipe", write(ends[1], "x", 1));
    SAY("SIGPIPE", last == SIGPIPE);
    signal(SIGPIPE, SIG_IGN);
    ERRNO("ignored pipe", write(ends[1], "x", 1));
    close(ends[1]);
}

static void handlers(void)
{
    sigset_t set, old;
    signal(SIGALRM, on);
    struct itimerval timer = {{0, 0}, {0, 20000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    pause();
    SAY("alarm", last == SIGALRM);
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536}, was;
    sigaltstack(&stack, NULL);
    sigaltstack(NULL, &was);
    SAY("altstack", was.ss_sp == stack.ss_sp);
    struct sigaction action = {.sa_handler = on, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &action, NULL);
    raise(SIGUSR2);
    SAY("on it", last == SIGUSR2);
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, &old);
    SAY("all blocked", getpid() > 0);
    raise(SIGUSR2);
    int fd = signalfd(-1, &set, 0);
    struct signalfd_siginfo got;
    SAY("signalfd", read(fd, &got, sizeof got) == sizeof got ? got.ssi_signo : 0);
    close(fd);
    sigprocmask(SIG_SETMASK, &old, NULL);
    action.sa_handler = SIG_IGN;
    struct sigaction before;
    SAY("SIGSYS", sigaction(SIGSYS, &action, &before) == 0 && before.sa_handler == SIG_DFL);
    SAY("is remembered", sigaction(SIGSYS, NULL, &before) == 0 && before.sa_handler == SIG_IGN);
    raise(SIGSYS);
    action.sa_handler = on;
    sigaction(SIGSYS, &action, NULL);
    raise(SIGSYS);
    SAY("and taken", last == SIGSYS);
    action.sa_handler = SIG_DFL;
    sigaction(SIGSYS, &action, NULL);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, inherits;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static long turns, sums[4];
static __thread long own;
static void *worker(void *given)
{
    long number = (long)given;
    bool good = gettid() != getpid() && syscall(SYS_gettid) == gettid();
    char name[16] = {0}, back[16] = {0};
    snprintf(name, sizeof name, "worker%ld", number);
    prctl(PR_SET_NAME, name);
    prctl(PR_GET_NAME, back);
    for (int n = 0; n < 200; n++) {
        pthread_mutex_lock(&mutex);
        while (turns % 4 != number)
            pthread_cond_wait(&changed, &mutex);
        turns++;
        own += turns;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
        pthread_mutex_lock(&inherits);
        sums[0]++;
        pthread_mutex_unlock(&inherits);
    }
    sums[number] += number ? own : 0;
    return (void *)(long)(good && strcmp(name, back) == 0);
}

static void *sleeper(void *given)
{
    (void)given;
    for (;;)
        pause();
    return NULL;
}

static void *reader(void *given)
{
    char byte;
    for (int n = 0; n < 50; n++) /* by then it has a partner */
        access("/", R_OK);
    return read(*(int *)given, &byte, 1) < 0 ? given : NULL;
}

static void threads(void)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inherits, &kind);
    pthread_t all[4];
    void *result;
    long good = 0;
    for (long n = 0; n < 4; n++)
        pthread_create(&all[n], NULL, worker, (void *)n);
    for (long n = 0; n < 4; n++) {
        pthread_join(all[n], &result);
        good += (long)result;
    }
    SAY("threads", good);
    SAY("turns", turns);
    SAY("sums", sums[0] * 7 + sums[1] * 5 + sums[2] * 3 + sums[3]);
    for (int n = 0; n < 40; n++) {
        pthread_create(&all[0], NULL, sleeper, NULL);
        pthread_cancel(all[0]);
        pthread_join(all[0], &result);
    }
    SAY("cancelled", result == PTHREAD_CANCELED);
    int ends[2] = {-1, -1};
    SAY("pipe", pipe(ends));
    for (int n = 0; n < 3; n++) {
        pthread_create(&all[0], NULL, reader, &ends[0]);
        wait_ms(5);
        pthread_cancel(all[0]);
        pthread_join(all[0], &result);
    }
    SAY("cancelled in a call", result == PTHREAD_CANCELED);
    char link[64] = {0}, right[64];
    snprintf(right, sizeof right, "%d/task/%d", (int)getpid(), (int)gettid());
    SAY("thread-self", readlink("/proc/thread-self", link, 63) > 0 && strcmp(link, right) == 0);
    FILE *state = fopen("/proc/thread-self/stat", "r");
    int number = 0;
    SAY("its file", state && fscanf(state, "%d", &number) == 1 && number == gettid());
    fclose(state);
    struct rusage usage;
    SAY("thread's usage", getrusage(RUSAGE_THREAD, &usage));
    cpu_set_t cores;
    SAY("affinity", sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : -1);
}

static void *serve(void *given)
{
    int listening = *(int *)given, fd = accept(listening, NULL, NULL);
    static char text[65536];
    ssize_t got;
    long sum = 0;
    while ((got = recv(fd, text, sizeof text, 0)) > 0)
        for (ssize_t n = 0; n < got; n++)
            sum += text[n];
    if (send(fd, &sum, sizeof sum, MSG_NOSIGNAL) != sizeof sum)
        sum = -1;
    close(fd);
    return NULL;
}

static void network(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    SAY("bind", bind(listening, (struct sockaddr *)&address, sizeof address));
    SAY("listen", listen(listening, 4));
    getsockname(listening, (struct sockaddr *)&address, &length);
    pthread_t server;
    pthread_create(&server, NULL, serve, &listening);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    SAY("connect", connect(fd, (struct sockaddr *)&address, sizeof address));
    static char text[1 << 20];
    memset(text, 1, sizeof text);
    SAY("send", send(fd, text, sizeof text, 0));
    shutdown(fd, SHUT_WR);
    long sum = 0;
    SAY("recv", recv(fd, &sum, sizeof sum, MSG_WAITALL));
    SAY("sum", sum);
    pthread_join(server, NULL);
    close(fd);
    close(listening);
    ERRNO("not connected", send(socket(AF_INET, SOCK_STREAM, 0), "x", 1, MSG_NOSIGNAL));
    int pair[2];
    SAY("socketpair", socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    struct timeval bound = {0, 30000};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
    ERRNO("bound", recv(pair[0], text, 10, 0));
    int many = epoll_create1(0), event = eventfd(0, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = 9}, got = {0};
    epoll_ctl(many, EPOLL_CTL_ADD, event, &wanted);
    SAY("epoll", epoll_wait(many, &got, 1, 20));
    eventfd_write(event, 3);
    SAY("epoll", epoll_wait(many, &got, 1, -1) * 100 + got.data.u32);
    struct itimerspec when = {{0, 0}, {0, 20000000}};
    timerfd_settime(timer, 0, &when, NULL);
    uint64_t ticks = 0;
    SAY("timerfd", read(timer, &ticks, sizeof ticks) + (long)ticks);
    fd_set some;
    FD_ZERO(&some);
    FD_SET(event, &some);
    struct timespec moment = {0, 20000000};
    sigset_t mask;
    sigfillset(&mask);
    SAY("pselect", pselect(event + 1, &some, NULL, NULL, &moment, &mask));
    struct pollfd one = {event, POLLIN, 0};
    SAY("ppoll", ppoll(&one, 1, &moment, &mask));
}

static void children(char *self)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        bool right = getpid() == gettid() && getppid() != getpid();
        pthread_t thread;
        void *result = NULL;
        turns = 1;
        pthread_create(&thread, NULL, worker, (void *)9);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        for (int n = 0; n < 100; n++)
            right = right && write(-1, "", 1) == -1 && errno == EBADF;
        _exit(right && result == PTHREAD_CANCELED ? 11 : 12);
    }
    SAY("waited", waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : -1);
    child = vfork();
    if (child == 0) {
        execl(self, self, "child", "a word", NULL);
        _exit(13);
    }
    SAY("executed", waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : -1);
    char *words[] = {self, "child", "spawned", NULL};
    extern char **environ;
    int spawned = posix_spawn(&child, self, NULL, NULL, words, environ);
    SAY("spawned", waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : -1);
    SAY("spawn", spawned);
    SAY("no program", posix_spawn(&child, "/no/such", NULL, NULL, words, environ));
    ERRNO("no exec", execl("/no/such", "x", NULL));
    ERRNO("no child", waitpid(-1, &status, 0));
    fflush(stdout);
    SAY("system", system("echo from a shell; exit 3") >> 8);
    child = fork();
    if (child == 0) {
        raise(SIGKILL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    SAY("killed by", WTERMSIG(status));
    child = fork();
    if (child == 0) { /* ends in its second thread */
        pthread_t thread;
        pthread_create(&thread, NULL, disturb,
                       &(struct disturbance){pthread_self(), SIGCHLD, -1});
        pthread_exit(NULL);
    }
    waitpid(child, &status, 0);
    SAY("last thread", WEXITSTATUS(status));
    child = fork();
    if (child == 0) {
        for (int n = 0; n < 100; n++)
            access("/", R_OK);
        /* Only reads, writes and the end of the thread from here on. */
        bool strict = prctl(PR_SET_SECCOMP, 1) == 0 && write(1, "strict\n", 7) == 7;
        syscall(SYS_exit, strict ? 16 : 17);
    }
    waitpid(child, &status, 0);
    SAY("under a filter", WEXITSTATUS(status));
    if (getuid() == 0) {
        child = fork();
        if (child == 0) {
            for (int n = 0; n < 100; n++) /* by then it has a partner */
                access("/", R_OK);
            int shadow = open("/etc/shadow", O_RDONLY);
            bool before = shadow >= 0 || errno == ENOENT;
            bool fell = setgid(65534) == 0 && setuid(65534) == 0;
            _exit(before && fell && open("/etc/shadow", O_RDONLY) < 0 ? 14 : 15);
        }
        waitpid(child, &status, 0);
        SAY("rights fall", WEXITSTATUS(status) == 14);
    }
}

int main(int count, char **words)
{
    if (count > 2) {
        printf("child: %s\n", words[2]);
        return 21;
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    if (count > 1) { /* waits until it is killed, with a thread in a call each */
        pthread_t thread;
        int ends[2];
        for (int n = 0; n < 3; n++)
            pthread_create(&thread, NULL, sleeper, NULL);
        char byte;
        for (int n = 0; n < 100; n++)
            access("/", R_OK);
        puts("ready");
        return pipe(ends) == 0 ? (int)read(ends[0], &byte, 1) : 1;
    }
    files();
    memory();
    queues();
    interruptions();
    handlers();
    threads();
    network();
    children(words[0]);
    pthread_t thread;
    pthread_create(&thread, NULL, sleeper, NULL);
    return 7;
}
