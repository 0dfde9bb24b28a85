// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What an ordinary user's program is: it becomes user 1000 with groups, a capability, a mask
 * and limits, executes itself as a service would, and compares all that for ever. It also lays
 * a trap: the name of its open file becomes a link to a file of root's.
 *
 *   user FILE     as root, in a directory of user 1000; until FILE is there
 *
 * Prints "user is ..." once and "user ok ROUND"; "BAD ..." at a difference.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RAW	13	/* CAP_NET_RAW */
#define HOME	"/dax/home"
#define SECRET	"/dax/secret"

static void bad(const char *what)
{
	printf("BAD user %d: %s: %s\n", getuid(), what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

static void must(int result, const char *what)
{
	if (result < 0)
		bad(what);
}

/* Memory of its own can be had. */
static void map(void)
{
	char *at = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		bad("mmap");
	memset(at, 7, 1 << 20);
	munmap(at, 1 << 20);
}

static void become(char **argv)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct raw[2] = { { 1 << RAW, 1 << RAW, 1 << RAW }, { 0, 0, 0 } };
	const gid_t groups[] = { 7, 1000, 70000 };
	const struct rlimit files = { 300, 400 };

	must(chdir(HOME), "chdir");
	umask(027);
	must(setrlimit(RLIMIT_NOFILE, &files), "setrlimit");
	must(prctl(PR_CAPBSET_DROP, 21), "bounding set");
	must(prctl(PR_SET_KEEPCAPS, 1), "keep capabilities");
	must(setgroups(3, groups), "setgroups");
	must(setresgid(1000, 1000, 1000), "setresgid");
	must(setresuid(1000, 1000, 1000), "setresuid");
	/* As a service that goes on without exec. */
	map();
	must((int)syscall(SYS_capset, &head, raw), "capset");
	must(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, RAW, 0, 0), "ambient");
	execl(argv[0], argv[0], argv[1], "inner", NULL);
	bad("execl");
}

/* All that is to be kept, as text. */
static void look(char *to, size_t room)
{
	char line[256], cwd[256];
	struct rlimit files;
	mode_t mask = umask(0);
	FILE *status = fopen("/proc/self/status", "r");
	size_t n = 0;

	if (!status)
		bad("/proc/self/status");
	umask(mask);
	while (fgets(line, sizeof(line), status))
		if (!strncmp(line, "Uid", 3) || !strncmp(line, "Gid", 3) ||
		    !strncmp(line, "Groups", 6) || !strncmp(line, "Cap", 3) ||
		    !strncmp(line, "NoNew", 5))
			n += (size_t)snprintf(to + n, room - n, "%.*s, ", (int)strlen(line) - 1, line);
	fclose(status);
	getrlimit(RLIMIT_NOFILE, &files);
	snprintf(to + n, room - n, "umask %o files %lu %lu dumpable %d bits %d in %s", mask,
		 (long)files.rlim_cur, (long)files.rlim_max, prctl(PR_GET_DUMPABLE),
		 prctl(PR_GET_SECUREBITS), getcwd(cwd, sizeof(cwd)) ? cwd : strerror(errno));
}

int main(int argc, char **argv)
{
	static char first[4096], now[4096];
	int file;

	if (argc == 2)
		become(argv);
	look(first, sizeof(first));
	for (char *c = first; *c; c++)
		if (*c == '\t')
			*c = ' ';
	printf("user is %s\n", first);
	look(first, sizeof(first));
	file = open("mine", O_RDWR | O_CREAT, 0600);
	must(file, "open mine");
	/* Its name leads elsewhere, it is not removed. */
	must(link("mine", "kept"), "link");
	must(unlink("mine"), "unlink");
	must(symlink(SECRET, "mine"), "symlink");
	for (long round = 1; access(argv[1], F_OK); round++) {
		look(now, sizeof(now));
		if (strcmp(first, now)) {
			printf("BAD user was %s\nBAD user is %s\n", first, now);
			return 1;
		}
		map();
		if (write(file, "user\n", 5) < 0 && errno != EBADF)
			bad("write");
		if (open(SECRET, O_RDWR) >= 0)
			bad("can open root's file");
		if (round % 8 == 0) {
			printf("user ok %ld\n", round);
			fflush(stdout);
		}
		usleep(20000);
	}
	return 0;
}
