/* A stand-in for the plug-ins by which Slurm starts containers: pyxis (--container-...), CSCS's Container Engine (--environment), Sarus
 * Suite (--edf) and uenv (--uenv, --view). It accepts their options on command lines and in #SBATCH lines, writes each with its value
 * into a file, and does nothing else: commands run on the host. spank(8). */
#include <slurm/spank.h>
#include <stdio.h>
#include <string.h>

SPANK_PLUGIN(stand_in, 1);

static const struct { const char *name, *value; } known[] = {
	{"container-image", "IMAGE"}, {"container-mounts", "SRC:DST[:FLAGS],..."}, {"container-workdir", "DIR"}, {"container-name", "NAME"},
	{"container-save", "FILE"}, {"container-mount-home", NULL}, {"no-container-mount-home", NULL}, {"container-remap-root", NULL},
	{"no-container-remap-root", NULL}, {"container-entrypoint", NULL}, {"no-container-entrypoint", NULL}, {"container-entrypoint-log", NULL},
	{"container-writable", NULL}, {"container-readonly", NULL}, {"container-env", "NAME,..."},
	{"environment", "EDF"}, {"edf", "EDF"}, {"uenv", "IMAGE,..."}, {"view", "VIEW,..."},
};
enum { count = sizeof known / sizeof known[0] };

static char record[4096];

static int took(int which, const char *value, int remote)
{
	FILE *f;

	if (remote || !record[0]) /* the node gets what srun had */
		return ESPANK_SUCCESS;
	if (!(f = fopen(record, "a")))
		return ESPANK_ERROR;
	fprintf(f, "%s --%s%s%s\n", spank_context() == S_CTX_LOCAL ? "srun" : "sbatch", known[which].name, known[which].value ? "=" : "",
		known[which].value && value ? value : "");
	return fclose(f) ? ESPANK_ERROR : ESPANK_SUCCESS;
}

int slurm_spank_init(spank_t sp, int argc, char **argv)
{
	static const char key[] = "record=";
	int i;

	for (i = 0; i < argc; i++)
		if (!strncmp(argv[i], key, sizeof key - 1))
			snprintf(record, sizeof record, "%s", argv[i] + sizeof key - 1);
	for (i = 0; i < count; i++) {
		struct spank_option o = {
			.name = (char *)known[i].name, .arginfo = (char *)known[i].value, .usage = "accepted and recorded by a stand-in",
			.has_arg = known[i].value != NULL, .val = i, .cb = took,
		};
		if (spank_option_register(sp, &o) != ESPANK_SUCCESS)
			return ESPANK_ERROR;
	}
	return ESPANK_SUCCESS;
}
