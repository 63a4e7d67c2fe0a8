/*
 * The loop of a rotary pendulum on a microcontroller: a trained policy balances it.
 *
 *     genkidama export runs/rotary --as c --out policy.h
 *     cc -std=c99 firmware.c simulated.c -lm -o firmware && ./firmware
 *
 * On a robot, sensors, motor and timer stand in the place of simulated.c. A watchdog of the
 * hardware should stop the motor if this loop ever stands still.
 */
#include "policy.h"
#include "robot.h"

#define VOLTS 6.0f      /* at action 1 */
#define FALLEN 0.5f     /* rad */
#define TURNED 2.0f     /* rad */

static float limited(float x)
{
    return fmaxf(-5.0f, fminf(x, 5.0f));
}

int main(void)
{
    float action[POLICY_ACTIONS] = {0.0f};

    while (robot_wait()) {
        struct joints now;

        /* As in training, an action works from the tick after it was chosen. */
        robot_drive(VOLTS * action[0]);
        now = robot_read();
        /* Written so that a broken sensor's NaN counts as a fall. */
        if (!(fabsf(now.rod) <= FALLEN && fabsf(now.arm) <= TURNED))
            break;

        /* The observation of RotaryPendulum in rotary.py. */
        const float observation[POLICY_INPUTS] = {
            limited(now.arm),
            limited(4.0f * now.rod),
            limited(now.arm_speed / 5.0f),
            limited(now.rod_speed / 5.0f),
            action[0],
        };
        policy_act(observation, action);
    }
    robot_drive(0.0f);
    return 0;
}
